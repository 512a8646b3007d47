from dataclasses import replace

import pytest
import torch
from torch import Tensor

from blendrun.engine.products import is_panels, linear, linear_silu_mul, pack_weights, shape_of
from blendrun.engine.weights import DecoderWeights, LayerWeights
from blendrun.kernels.cpu import linear as kernel
from blendrun.kernels.cpu.silu_mul import silu_mul


def random_weights(dtype: torch.dtype, tied: bool, size: int = 48) -> DecoderWeights:
    torch.manual_seed(0)

    def new(*shape: int) -> Tensor:
        return torch.randn(shape).to(dtype)

    layer = LayerWeights(
        new(size), new(2 * size, size), new(2 * size), None, None, new(size, size), None, new(size),
        new(2 * size, size), None, new(size, size), None,
    )  # fmt: skip
    embedding = new(200, size)
    return DecoderWeights(embedding, (layer,), new(size), embedding if tied else new(200, size))


@pytest.fixture
def bf16_products() -> None:
    weights = random_weights(torch.bfloat16, tied=True)
    if not pack_weights(weights).head.is_mkldnn:
        pytest.skip("this CPU has no bf16 products")


@pytest.mark.usefixtures("bf16_products")
@pytest.mark.parametrize("tokens", [1, 3, 64, 700])
@pytest.mark.parametrize("size", [48, 64])  # no whole panels, and whole ones
def test_packed_products_are_those_of_the_plain_weights(tokens: int, size: int):
    plain = random_weights(torch.bfloat16, tied=True, size=size)
    kept = replace(plain.layers[0], **{n: getattr(plain.layers[0], n).clone() for n in MATRICES})
    packed = pack_weights(plain)
    x = torch.randn(tokens, size).bfloat16()
    for name in MATRICES:
        weight = getattr(packed.layers[0], name)
        assert is_panels(weight) if size == 64 and kernel.is_fast() else weight.is_mkldnn
        assert shape_of(weight) == tuple(getattr(kept, name).shape)
        bias = kept.qkv_bias if name == "qkv" else None
        expected = torch.nn.functional.linear(x, getattr(kept, name), bias)
        if name == "gate_up":
            actual = linear_silu_mul(x, weight)
            torch.testing.assert_close(actual, silu_mul(expected), rtol=3e-2, atol=5e-2)
        else:
            torch.testing.assert_close(linear(x, weight, bias), expected)
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
