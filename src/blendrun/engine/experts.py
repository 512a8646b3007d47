"""A layer's routed experts: which of them each token visits, and what they make of it.

Tokens are sorted by expert, so that each expert is one product with all of its tokens. A token's
values depend on its own row alone; who else visits an expert changes its rounding at most.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from blendrun.engine.decoder_weights import ExpertWeights
from blendrun.engine.products import grouped_linear


def route(logits: Tensor, per_token: int, normalise: bool) -> tuple[Tensor, Tensor]:
    """The experts of each token, best first, and how much each of them counts.

    Args:
        logits: [T, E] of the router.
        per_token: K, experts that a token visits.
        normalise: a token's shares add up to 1; else they are its softmax over all experts.

    Returns:
        int64 [T, K] and float32 [T, K].
    """
    share, expert = logits.softmax(dim=-1, dtype=torch.float32).topk(per_token, dim=-1)
    return expert, share / share.sum(dim=-1, keepdim=True) if normalise else share


def visit(
    x: Tensor,
    expert: Tensor,
    share: Tensor,
    weights: ExpertWeights,
    silu_mul: Callable[[Tensor], Tensor],
    row_block: int | None = None,
) -> Tensor:
    """The sum over each token's experts of their MLP of it, times its share.

    Args:
        x: [T, H].
        expert, share: as `route` gives them.
        silu_mul: as `kernels.cpu.silu_mul.silu_mul`.
        row_block: see `row_blocks`.

    Returns:
        [T, H] in the dtype of x; the sum is float32, in the order of `expert`.
    """
    if not len(x):
        return x
    visits, by_expert = expert.flatten().sort(stable=True)
    every = torch.arange(len(weights.router), device=x.device)
    ends = torch.searchsorted(visits, every, right=True)
    inner = grouped_linear(x[by_expert // expert.shape[1]], ends, weights.gate_up, row_block)
    made = grouped_linear(silu_mul(inner), ends, weights.down, row_block)
    place = torch.empty_like(by_expert)
    place[by_expert] = torch.arange(len(visits), device=x.device)
    return (made[place].view(*expert.shape, -1) * share[:, :, None]).sum(dim=1).to(x.dtype)
