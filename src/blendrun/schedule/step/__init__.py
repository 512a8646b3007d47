"""One decision per engine step, compiled: which requests decode, prefill, come in or go out."""
