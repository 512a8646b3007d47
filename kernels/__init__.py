"""Kernels: each has a source, a wrapper, a plain-torch reference of the same signature, a test.

Nothing here knows of requests, plans or schedules; kernels see tensors, page tables and lengths.
"""
