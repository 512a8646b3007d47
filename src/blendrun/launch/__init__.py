"""Ranks: processes that share a job, or a model; who does what, hand-over, watch, restart."""
