"""Backends, page pool, run-time prefix cache and the run loop. Torch lives here, not above."""
