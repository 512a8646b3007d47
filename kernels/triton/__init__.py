"""GPU kernels of our own in Triton, for where FlashInfer is missing or has none.

Checked without a GPU: run by Triton's interpreter against plain torch, and compiled ahead of time
(`compiled_ahead.py`). Never run on a device so far.
"""
