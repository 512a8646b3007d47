"""How q and k of a step are turned: angles of its tokens, and norms of the layer's heads."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Rotation:
    """Of T tokens and one layer; D is head_dim."""

    cos: Tensor  # float32 [T, D / 2]
    sin: Tensor  # float32 [T, D / 2]
    q_norm: Tensor | None  # [D] RMSNorm of each head before it is turned; None: there is none
    k_norm: Tensor | None  # [D]
    eps: float  # of both norms
