"""Paged attention for devices in index arrays that FlashInfer and Triton kernels take alike."""
