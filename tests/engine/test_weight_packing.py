from dataclasses import replace

import pytest
import torch
from torch import Tensor

from blendrun.engine.decoder_weights import DecoderWeights, ExpertWeights, LayerWeights, MlpWeights
from blendrun.engine.products import grouped_linear, is_panels, linear, shape_of
from blendrun.engine.weight_packing import pack_weights
from blendrun.kernels.cpu import linear as kernel
from blendrun.kernels.cpu import screened_argmax


def random_weights(dtype: torch.dtype, tied: bool, size: int = 48) -> DecoderWeights:
    torch.manual_seed(0)

    def new(*shape: int) -> Tensor:
        return torch.randn(shape).to(dtype)

    mlp = MlpWeights(new(2 * size, size), None, new(size, size), None)
    layer = LayerWeights(
        new(size), new(2 * size, size), new(2 * size), None, None, new(size, size), None, new(size),
        mlp,
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
    kept, bias = [matrix.clone() for matrix in matrices(plain)], plain.layers[0].qkv_bias
    packed = pack_weights(plain)
    norms = {QKV: plain.layers[0].input_norm, GATE_UP: plain.layers[0].post_norm}
    x = torch.randn(tokens, size).bfloat16()
    for place, (weight, matrix) in enumerate(zip(kept, matrices(packed), strict=True)):
        own = bias if place == 0 else None
        assert is_panels(matrix) if size == 64 and kernel.is_fast() else matrix.is_mkldnn
        assert shape_of(matrix) == tuple(weight.shape)
        if is_panels(matrix):
            weight = weight * norms.get(place, 1)
            assert torch.equal(kernel.unpack(matrix, is_gated=place == GATE_UP), weight)
            weight = kernel.unpack(matrix)  # gate and up in the panels' own order
        expected = torch.nn.functional.linear(x, weight, own)
        torch.testing.assert_close(linear(x, matrix, own), expected)
    expected = torch.nn.functional.linear(x, packed.embedding)
    torch.testing.assert_close(linear(x, packed.head), expected)


@pytest.mark.skipif(not screened_argmax.is_fast(), reason="no dot products of bytes")
def test_the_head_is_screened_where_it_is_in_panels():
    weights = pack_weights(random_weights(torch.bfloat16, tied=False, size=64))
    assert weights.screen is None  # 200 columns are no whole panels
    plain = random_weights(torch.bfloat16, tied=False, size=64)
    weights = pack_weights(replace(plain, head=torch.randn(256, 64).bfloat16()))
    assert weights.screen is not None
    assert weights.screen.panels is weights.head


QKV, GATE_UP = 0, 2  # their places among them


def matrices(weights: DecoderWeights) -> list[Tensor]:
    layer = weights.layers[0]
    return [layer.qkv, layer.out, layer.mlp.gate_up, layer.mlp.down]


@pytest.mark.usefixtures("bf16_products")
@pytest.mark.parametrize("size", [48, 64])
def test_norms_are_where_their_weights_are_not_in_panels(size: int):
    plain = random_weights(torch.bfloat16, tied=True, size=size)
    own, layer = plain.layers[0], pack_weights(plain).layers[0]
    assert layer.input_norm is (None if is_panels(layer.qkv) else own.input_norm)
    assert layer.post_norm is (None if is_panels(layer.mlp.gate_up) else own.post_norm)


@pytest.mark.usefixtures("bf16_products")
def test_no_matrix_is_there_twice_but_a_tied_embedding():
    plain = random_weights(torch.bfloat16, tied=False)
    packed = pack_weights(plain)
    assert [matrix.untyped_storage().nbytes() for matrix in matrices(plain)] == [0] * 4
    assert plain.head.untyped_storage().nbytes() == 0
    assert packed.embedding.untyped_storage().nbytes() == 200 * 48 * 2


@pytest.mark.usefixtures("bf16_products")
def test_every_expert_is_packed_and_none_is_there_twice():
    plain = random_weights(torch.bfloat16, tied=True)
    stacks = torch.randn(4, 96, 48).bfloat16(), torch.randn(4, 48, 48).bfloat16()
    mlp = ExpertWeights(torch.randn(4, 48).bfloat16(), *stacks)
    kept, x = [stack.clone() for stack in stacks], torch.randn(7, 48).bfloat16()
    layer = replace(plain.layers[0], mlp=mlp)
    packed = pack_weights(replace(plain, layers=(layer,))).layers[0].mlp
    assert [stack.untyped_storage().nbytes() for stack in stacks] == [0, 0]
    ends = torch.tensor([3, 3, 4, 7])
    for weights, stack in zip((packed.gate_up, packed.down), kept, strict=True):
        assert all(weight.is_mkldnn for weight in weights)
        expected = grouped_linear(x, ends, stack)
        assert torch.equal(expected[3:4], torch.nn.functional.linear(x[3:4], stack[2]))
        torch.testing.assert_close(grouped_linear(x, ends, weights), expected)


def test_float32_stays_as_it_is():
    plain = random_weights(torch.float32, tied=True)
    assert pack_weights(plain) is plain
