"""Prefix tree over all prompts of a job, in columns."""
