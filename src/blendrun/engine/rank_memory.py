"""How much memory the ranks of a tensor-parallel group have for their KV pages: the least of all.

On GPUs each rank finds that out with a step of the largest size, in which all take part.
"""

import numpy as np
import torch

from blendrun.engine.decoder import Decoder
from blendrun.engine.device_memory import CudaMemory, DeviceMemory, kv_bytes
from blendrun.engine.kv_memory import free_bytes
from blendrun.engine.tensor_group import Message

MEMORY = 3  # kind of message


def least_free_bytes(decoder: Decoder, chunk_size: int, max_seqs: int) -> int:
    """What every rank of the group has for KV pages beside steps of that size.

    Only the first rank asks.
    """
    decoder.group.tell(Message(MEMORY, [chunk_size, max_seqs], np.zeros(0, np.int32)))
    return _least(decoder, chunk_size, max_seqs)


def answer(decoder: Decoder, message: Message) -> None:
    """What the other ranks do when the first one asks."""
    chunk_size, max_seqs = message.numbers[:2]
    _least(decoder, chunk_size, max_seqs)


def _least(decoder: Decoder, chunk_size: int, max_seqs: int) -> int:
    group, memory = decoder.group, _memory_of(decoder.device)
    if memory is None:
        return group.least(free_bytes(group.shard.size))
    return group.least(kv_bytes(decoder, memory, chunk_size, max_seqs))


def _memory_of(device: torch.device) -> DeviceMemory | None:
    """Of a GPU; None: ranks on a CPU share its memory."""
    return CudaMemory(device) if device.type == "cuda" else None
