from dataclasses import replace

import pytest
import torch
from torch import Tensor

from blendrun.engine.decoder_weights import DecoderWeights, ExpertWeights, LayerWeights, MlpWeights
from blendrun.engine.products import grouped_linear, linear, pack_weights


def random_weights(dtype: torch.dtype, tied: bool) -> DecoderWeights:
    torch.manual_seed(0)

    def new(*shape: int) -> Tensor:
        return torch.randn(shape).to(dtype)

    mlp = MlpWeights(new(96, 48), None, new(48, 48), None)
    layer = LayerWeights(new(48), new(80, 48), new(80), None, None, new(48, 48), None, new(48), mlp)
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
    kept, bias = [matrix.clone() for matrix in matrices(plain)], plain.layers[0].qkv_bias
    packed = pack_weights(plain)
    x = torch.randn(tokens, 48).bfloat16()
    for weight, matrix in zip(kept, matrices(packed), strict=True):
        own = bias if len(weight) == len(bias) else None
        assert matrix.is_mkldnn
        expected = torch.nn.functional.linear(x, weight, own)
        torch.testing.assert_close(linear(x, matrix, own), expected)
    expected = torch.nn.functional.linear(x, packed.embedding)
    torch.testing.assert_close(linear(x, packed.head), expected)


def matrices(weights: DecoderWeights) -> list[Tensor]:
    layer = weights.layers[0]
    return [layer.qkv, layer.out, layer.mlp.gate_up, layer.mlp.down]


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
