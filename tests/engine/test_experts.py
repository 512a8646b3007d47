"""Routed experts against a loop over tokens, in float64."""

import pytest
import torch
from torch.nn import functional as F

from blendrun.engine import products
from blendrun.engine.decoder_weights import ExpertWeights
from blendrun.engine.experts import route, visit
from blendrun.kernels.cpu.silu_mul import silu_mul

HIDDEN, INNER, EXPERTS = 24, 16, 5


def random_experts() -> ExpertWeights:
    random = torch.Generator().manual_seed(0)
    shapes = (EXPERTS, HIDDEN), (EXPERTS, 2 * INNER, HIDDEN), (EXPERTS, HIDDEN, INNER)
    return ExpertWeights(*(torch.randn(shape, generator=random) for shape in shapes))


def one_by_one(x, expert, share, weights: ExpertWeights) -> torch.Tensor:
    """Token by token and expert by expert."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    for token in range(len(x)):
        for place, number in enumerate(expert[token].tolist()):
            gate, up = (weights.gate_up[number].double() @ x[token].double()).chunk(2)
            made = weights.down[number].double() @ (F.silu(gate) * up)
            out[token] += share[token, place].double() * made
    return out


def test_a_token_goes_to_its_best_experts_in_shares_of_their_softmax():
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0], [5.0, 1.0, 0.0, 4.0]])
    probability = logits.softmax(dim=1)
    expert, share = route(logits, 2, normalise=False)
    assert expert.tolist() == [[1, 3], [0, 3]]
    torch.testing.assert_close(share, probability.gather(1, expert))
    _, whole = route(logits, 2, normalise=True)
    torch.testing.assert_close(whole, share / share.sum(dim=1, keepdim=True))


def test_shares_are_float32_whatever_the_model_is():
    _, share = route(torch.randn(3, 4, dtype=torch.bfloat16), 2, normalise=True)
    assert share.dtype == torch.float32


@pytest.mark.parametrize("num_tokens", [0, 1, 7, 40])
@pytest.mark.parametrize("per_token", [1, 2, EXPERTS])
def test_experts_make_what_each_token_would_get_alone(num_tokens: int, per_token: int):
    weights = random_experts()
    random = torch.Generator().manual_seed(num_tokens)
    x = torch.randn(num_tokens, HIDDEN, generator=random)
    logits = torch.randn(num_tokens, EXPERTS, generator=random)
    logits[:, 2] = -9.0  # hardly anyone visits it
    expert, share = route(logits, per_token, normalise=True)
    made = visit(x, expert, share, weights, silu_mul)
    assert made.shape == x.shape
    expected = one_by_one(x, expert, share, weights)
    torch.testing.assert_close(made.double(), expected, rtol=1e-4, atol=1e-4)


def test_all_tokens_may_visit_one_expert():
    weights, x = random_experts(), torch.randn(9, HIDDEN)
    expert, share = torch.full((9, 1), 3), torch.ones(9, 1)
    expected = one_by_one(x, expert, share, weights)
    made = visit(x, expert, share, weights, silu_mul)
    torch.testing.assert_close(made.double(), expected, rtol=1e-4, atol=1e-4)


def test_each_expert_that_somebody_visits_is_one_product(monkeypatch: pytest.MonkeyPatch):
    seen = []

    def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        seen.append(len(x))
        return F.linear(x, weight)

    monkeypatch.setattr(products, "linear", product)
    expert = torch.tensor([[0, 4], [4, 1], [4, 0]])
    visit(torch.randn(3, HIDDEN), expert, torch.ones(3, 2), random_experts(), silu_mul)
    assert seen == [2, 1, 3] * 2


@pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="torch is older than grouped_mm")
def test_all_experts_in_one_launch_make_the_same(monkeypatch: pytest.MonkeyPatch):
    weights, x = random_experts(), torch.randn(30, HIDDEN)
    expert, share = route(torch.randn(30, EXPERTS), 2, normalise=True)
    each = visit(x, expert, share, weights, silu_mul)
    monkeypatch.setattr(products, "_is_one_kernel", lambda _: True)
    monkeypatch.setattr(products, "linear", None)
    torch.testing.assert_close(
        visit(x, expert, share, weights, silu_mul), each, rtol=1e-5, atol=1e-5
    )
