"""From each rank's columns of the logits to what the first rank needs of them.

The best token takes three numbers of each rank and row; all logits are gathered only for rows
that need them.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from blendrun.cost.tensor_shards import Shard
from blendrun.engine.sampler import Sampled
from blendrun.engine.tensor_group import TensorGroup
from blendrun.kernels.cpu.argmax import Best


def best_tokens(best: Best, vocab_size: int, group: TensorGroup) -> Sampled | None:
    """The best token of each row; None on all ranks but the first.

    `best` is among the columns of this rank. Of equal ones the first rank's counts.
    """
    first = group.shard.piece(vocab_size).start
    # float64 holds every float32 and every token id
    mine = torch.stack([best.value.double(), (best.column + first).double(), best.finite.double()])
    parts = group.gather(mine)
    if parts is None:
        return None
    values, ids, are_finite = torch.stack(parts, dim=1)  # [size, R] each
    bad = ~(are_finite > 0).all(dim=0)
    rank = values.nan_to_num().argmax(dim=0, keepdim=True)
    return Sampled(ids.gather(0, rank)[0].masked_fill(bad, 0).long(), bad)


def whole_logits(logits: Tensor, vocab_size: int, group: TensorGroup) -> Tensor | None:
    """[R, vocab] of each rank's columns; None on all ranks but the first."""
    size = group.shard.size
    if size == 1:
        return logits
    widths = [len(Shard(rank, size).piece(vocab_size)) for rank in range(size)]
    parts = group.gather(F.pad(logits, (0, max(widths) - logits.shape[1])))
    if parts is None:
        return None
    return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], dim=1)
