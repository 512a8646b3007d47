from dataclasses import replace

import pytest
import torch
from torch import Tensor

from blendrun.engine.products import linear, pack_weights
from blendrun.engine.weights import DecoderWeights, LayerWeights


def random_weights(dtype: torch.dtype, tied: bool) -> DecoderWeights:
    torch.manual_seed(0)

    def new(*shape: int) -> Tensor:
        return torch.randn(shape).to(dtype)

    layer = LayerWeights(
        new(48), new(80, 48), new(80), None, None, new(48, 48), None, new(48), new(96, 48), None,
        new(48, 48), None,
    )  # fmt: skip
    embedding = new(200, 48)
    return DecoderWeights(embedding, (layer,), new(48), embedding if tied else new(200, 48))


@pytest.fixture
def bf16_products() -> None:
    weights = random_weights(torch.bfloat16, tied=True)
    if not pack_weights(weights).head.is_mkldnn:
        pytest.skip("this CPU has no bf16 products")


@pytest.mark.usefixtures("bf16_products")
@pytest.mark.parametrize("tokens", [1, 3, 64, 700])
def test_packed_products_are_those_of_the_plain_weights(tokens: int):
    plain = random_weights(torch.bfloat16, tied=True)
    kept = replace(plain.layers[0], **{n: getattr(plain.layers[0], n).clone() for n in MATRICES})
    packed = pack_weights(plain)
    x = torch.randn(tokens, 48).bfloat16()
    for name in MATRICES:
        bias = kept.qkv_bias if name == "qkv" else None
        expected = torch.nn.functional.linear(x, getattr(kept, name), bias)
        assert packed.layers[0].qkv.is_mkldnn
        torch.testing.assert_close(linear(x, getattr(packed.layers[0], name), bias), expected)
    expected = torch.nn.functional.linear(x, packed.embedding)
    torch.testing.assert_close(linear(x, packed.head), expected)


MATRICES = ("qkv", "out", "gate_up", "down")


@pytest.mark.usefixtures("bf16_products")
def test_no_matrix_is_there_twice_but_a_tied_embedding():
    plain = random_weights(torch.bfloat16, tied=False)
    packed = pack_weights(plain)
    assert [getattr(plain.layers[0], n).untyped_storage().nbytes() for n in MATRICES] == [0] * 4
    assert plain.head.untyped_storage().nbytes() == 0
    assert packed.embedding.untyped_storage().nbytes() == 200 * 48 * 2


def test_float32_stays_as_it_is():
    plain = random_weights(torch.float32, tied=True)
    assert pack_weights(plain) is plain
