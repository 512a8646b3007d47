"""Starts, watches and ends the processes of a run that has several ranks."""
