"""Memory in pages of 2 MiB, where the system has them to give.

In pages of 4 KiB, whoever goes through a gigabyte of weights or KV once per step misses the TLB at
almost every page.
"""

import math
import mmap

import torch
from torch import Tensor

_HUGE = 2 << 20  # bytes


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An uninitialised tensor on the CPU; its memory is not touched. Small ones are torch's."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes < _HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(shape, dtype=dtype)
    # room to begin and to end at a multiple of 2 MiB
    memory = mmap.mmap(-1, num_bytes + 2 * _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    everything = torch.frombuffer(memory, dtype=torch.uint8)
    start = -everything.data_ptr() % _HUGE
    return everything[start : start + num_bytes].view(dtype).view(shape)
