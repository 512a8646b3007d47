"""Seconds of compute and of memory traffic, from a model's shape and a machine's figures."""
