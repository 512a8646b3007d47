"""Whether results can be the same to the last bit on this machine, whatever else runs.

A decoder that works in blocks of rows is tried out, since how matrix products round is their
library's business; the attention kernel in C++ is built for it, plain torch is not.
"""

import torch
from torch import Tensor

from blendrun.engine.decoder import Decoder
from blendrun.engine.paged_attention import PagedAttention
from blendrun.errors import BackendError, InputError
from blendrun.kernels.cpu.attention import CpuAttention


@torch.inference_mode()
def check_deterministic(decoder: Decoder, attention: PagedAttention) -> None:
    """Computes one block in two orders, and one of equal rows; attention is left out.

    Raises:
        InputError: attention is plain torch's.
        BackendError: a row's logits depend on its place in the block or on its neighbours.
    """
    head_dim = decoder.config.head_dim
    if not (isinstance(attention, CpuAttention) and attention.has_kernel(head_dim)):
        raise InputError(
            f"--deterministic needs the C++ attention kernel: {attention.backend_reason()}",
            "install g++ or clang++, or leave it out",
        )
    size = decoder.row_block or 1
    tokens = torch.arange(1, size + 1) * 7919 % decoder.config.vocab_size
    logits = _logits(decoder, tokens)
    same = torch.equal(logits, _logits(decoder, tokens.flip(0)).flip(0))
    for token in (0, size // 2):
        alike = _logits(decoder, tokens[token].repeat(size))
        same = same and torch.equal(alike, logits[token].expand_as(alike))
    if not same:
        raise BackendError(
            "this machine's matrix products round a row by its place in a block",
            "leave out --deterministic, or try another number of threads (OMP_NUM_THREADS)",
        )


def _logits(decoder: Decoder, tokens: Tensor) -> Tensor:
    hidden = decoder.forward(tokens, torch.full_like(tokens, 3), lambda _layer, q, *_: q)
    return decoder.logits(hidden)
