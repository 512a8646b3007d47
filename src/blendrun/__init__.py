"""blendrun: batch job runner for offline LLM inference."""

__version__ = "0.1.0"
