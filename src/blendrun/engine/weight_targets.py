"""Which tensor of a checkpoint goes where in the weights of a decoder, or of a rank's part of them.

Fused matrices take several tensors, and a rank some rows or columns of each. Knows the names that
the families use; reads nothing.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from blendrun.cost.tensor_shards import Shard
from blendrun.engine.decoder_config import DecoderConfig
from blendrun.engine.decoder_weights import DecoderWeights, ExpertWeights, LayerWeights, MlpWeights

# how a checkpoint spells experts: a tensor for each, as Qwen or as Mixtral name them, or all in one
ExpertSpelling = Literal["each", "mixtral", "stacked"]
_EXPERT_NAMES = {  # what the layer's block is called, and gate, up and down in it
    "each": ("mlp", ("gate_proj", "up_proj", "down_proj")),
    "mixtral": ("block_sparse_moe", ("w1", "w3", "w2")),
    "stacked": ("mlp", ("gate_up_proj", "gate_up_proj", "down_proj")),
}


class Target(NamedTuple):
    """Where a part of a checkpoint's tensor goes: a tensor, or a slice of a fused one."""

    tensor: Tensor
    shape: tuple[int, ...]  # of the checkpoint's tensor
    part: tuple[slice, ...]


def expert_spelling(names: Collection[str]) -> ExpertSpelling:
    """That of a checkpoint with tensors of these `names`."""
    if any(name.endswith(".mlp.experts.gate_up_proj") for name in names):
        return "stacked"
    return "mixtral" if any(".block_sparse_moe." in name for name in names) else "each"


def targets_of(
    weights: DecoderWeights, config: DecoderConfig, shard: Shard, spelling: ExpertSpelling
) -> Mapping[str, Sequence[Target]]:
    """Every tensor that a checkpoint must have, by name.

    `config` is that of the whole model, `weights` those of the `shard`.
    """
    vocab = shard.piece(config.vocab_size)
    targets = defaultdict(list)
    targets["model.embed_tokens.weight"].append(_rows(weights.embedding, vocab, config.vocab_size))
    targets["model.norm.weight"].append(_whole(weights.final_norm))
    if not config.tied_embeddings:
        targets["lm_head.weight"].append(_rows(weights.head, vocab, config.vocab_size))
    for index, layer in enumerate(weights.layers):
        for name, target in _of_layer(layer, config, shard, spelling):
            targets[f"model.layers.{index}.{name}"].append(target)
    return targets


def _of_layer(
    layer: LayerWeights, config: DecoderConfig, shard: Shard, spelling: ExpertSpelling
) -> Iterator[tuple[str, Target]]:
    heads = _scaled(shard.heads(config.num_heads), config.head_dim)
    kv_heads = _scaled(shard.kv_heads(config.num_kv_heads), config.head_dim)
    whole = {
        "input_layernorm.weight": layer.input_norm,
        "post_attention_layernorm.weight": layer.post_norm,
        "self_attn.q_norm.weight": layer.q_norm,
        "self_attn.k_norm.weight": layer.k_norm,
        "self_attn.o_proj.bias": layer.out_bias,
    }
    yield from ((name, _whole(tensor)) for name, tensor in whole.items() if tensor is not None)
    yield "self_attn.o_proj.weight", _columns(layer.out, heads, config.q_size)
    ranges = {"q": (heads, config.q_size)} | dict.fromkeys("kv", (kv_heads, config.kv_size))
    for kind, qkv in (("weight", layer.qkv), ("bias", layer.qkv_bias)):
        if qkv is not None:
            parts = torch.split(qkv, [len(rows) for rows, _ in ranges.values()])
            for (letter, rows), part in zip(ranges.items(), parts, strict=True):
                yield f"self_attn.{letter}_proj.{kind}", _rows(part, *rows)
    if isinstance(layer.mlp, MlpWeights):
        yield from _of_mlp(layer.mlp, shard, config.intermediate_size)
    else:
        yield from _of_experts(layer.mlp, shard, config.experts.intermediate_size, spelling)


def _of_mlp(mlp: MlpWeights, shard: Shard, width: int) -> Iterator[tuple[str, Target]]:
    inner = shard.piece(width)
    yield "mlp.down_proj.weight", _columns(mlp.down, inner, width)
    if mlp.down_bias is not None:
        yield "mlp.down_proj.bias", _whole(mlp.down_bias)
    for kind, gate_up in (("weight", mlp.gate_up), ("bias", mlp.gate_up_bias)):
        if gate_up is not None:
            gate, up = torch.split(gate_up, [len(inner), len(inner)])
            yield f"mlp.gate_proj.{kind}", _rows(gate, inner, width)
            yield f"mlp.up_proj.{kind}", _rows(up, inner, width)


def _of_experts(
    experts: ExpertWeights, shard: Shard, width: int, spelling: ExpertSpelling
) -> Iterator[tuple[str, Target]]:
    inner = shard.piece(width)
    num_experts, mine = len(experts.router), [len(inner), len(inner)]
    prefix, (gate_name, up_name, down_name) = _EXPERT_NAMES[spelling]
    yield f"{prefix}.gate.weight", _whole(experts.router)
    for expert, (gate_up, down) in enumerate(zip(experts.gate_up, experts.down, strict=True)):
        gate, up = torch.split(gate_up, mine)
        if spelling == "stacked":  # gate and up are one tensor there
            also = range(width + inner.start, width + inner.stop)
            parts = (_rows(gate, inner, 2 * width), _rows(up, also, 2 * width))
            for part in parts:
                yield f"{prefix}.experts.{gate_name}", _of_stack(part, expert, num_experts)
            down_part = _of_stack(_columns(down, inner, width), expert, num_experts)
            yield f"{prefix}.experts.{down_name}", down_part
        else:
            name = f"{prefix}.experts.{expert}"
            yield f"{name}.{gate_name}.weight", _rows(gate, inner, width)
            yield f"{name}.{up_name}.weight", _rows(up, inner, width)
            yield f"{name}.{down_name}.weight", _columns(down, inner, width)


def _scaled(heads: range, head_dim: int) -> range:
    return range(heads.start * head_dim, heads.stop * head_dim)


def _whole(tensor: Tensor) -> Target:
    return Target(tensor, tuple(tensor.shape), (slice(None),) * tensor.dim())


def _rows(tensor: Tensor, rows: range, num_rows: int) -> Target:
    return _along(0, tensor, rows, num_rows)


def _columns(tensor: Tensor, columns: range, num_columns: int) -> Target:
    return _along(1, tensor, columns, num_columns)


def _along(dim: int, tensor: Tensor, taken: range, size: int) -> Target:
    """`tensor` takes those of `size` rows, columns or whatever dimension `dim` counts."""
    shape, part = list(tensor.shape), [slice(None)] * tensor.dim()
    shape[dim], part[dim] = size, slice(taken.start, taken.stop)
    return Target(tensor, tuple(shape), tuple(part))


def _of_stack(one: Target, place: int, size: int) -> Target:
    """The same out of `size` tensors that are stacked in one."""
    part = (slice(place, place + 1), *one.part)
    return Target(one.tensor[None], (size, *one.shape), part)
