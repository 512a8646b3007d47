"""How much of a device's memory KV pages may take, found out with a step of the largest size."""

import gc
from collections.abc import Callable
from typing import Protocol

import torch

from blendrun.engine.decoder import Decoder
from blendrun.engine.step_runner import DRAWN_AT_ONCE

KV_FRAC = 0.92  # of what weights and activations leave: the rest is for draws and for gaps


class DeviceMemory(Protocol):
    def free_bytes(self) -> int:
        """What nobody has; caches of the allocator are given back first."""

    def peak_bytes(self, work: Callable[[], object]) -> int:
        """What `work` takes at most, beside what was there before."""


class CudaMemory:
    def __init__(self, device: torch.device) -> None:
        self._device = device

    def free_bytes(self) -> int:
        gc.collect()  # the KV pages of an earlier window
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(self._device)
        return int(free)

    def peak_bytes(self, work: Callable[[], object]) -> int:
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        work()
        torch.cuda.synchronize(self._device)
        return int(torch.cuda.max_memory_allocated(self._device)) - before


def kv_bytes(decoder: Decoder, memory: DeviceMemory, chunk_size: int, max_seqs: int) -> int:
    """Bytes for KV pages beside a step of `chunk_size` prefill tokens and `max_seqs` decodes."""
    peak = memory.peak_bytes(lambda: _largest_step(decoder, chunk_size, max_seqs))
    return max(0, int((memory.free_bytes() - peak) * KV_FRAC))


@torch.inference_mode()
def _largest_step(decoder: Decoder, chunk_size: int, max_seqs: int) -> None:
    """All but attention, which has its workspace already; as many draws as decodes."""
    tokens = torch.zeros(chunk_size + max_seqs, dtype=torch.int64, device=decoder.device)
    rows = torch.arange(max_seqs, device=decoder.device)
    hidden = decoder.forward(tokens, tokens, lambda _layer, q, *_: torch.empty_like(q), rows)
    for start in range(0, max_seqs, DRAWN_AT_ONCE):
        decoder.logits(hidden[start : start + DRAWN_AT_ONCE]).isfinite().all(dim=-1)
