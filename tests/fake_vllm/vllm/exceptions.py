class VLLMClientError(Exception):
    """Not a ValueError, as in the real one."""
