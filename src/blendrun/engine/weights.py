"""Safetensors weights of the Llama family, fused for the decoder while they are read.

Every tensor of the checkpoint is copied straight into its place (cast on the way), so that the
peak is the model plus one tensor; of a tensor-parallel rank, its shard plus one part of a tensor,
and nothing else is read. Knows tensor names; computes nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from blendrun.cost.tensor_shards import WHOLE, Shard
from blendrun.engine.decoder_config import DecoderConfig
from blendrun.engine.weight_files import StoredTensor, stored_tensors, weight_files
from blendrun.errors import InputError


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer; matrices are [out, in] as in torch's linear. H hidden, D head_dim, I mlp.

    Heads and I are those of the rank.
    """

    input_norm: Tensor  # [H]
    qkv: Tensor  # [(num_heads + 2 num_kv_heads) D, H]
    qkv_bias: Tensor | None
    q_norm: Tensor | None  # [D]
    k_norm: Tensor | None  # [D]
    out: Tensor  # [H, num_heads D]
    out_bias: Tensor | None
    post_norm: Tensor  # [H]
    gate_up: Tensor  # [2 I, H], gate first
    gate_up_bias: Tensor | None
    down: Tensor  # [H, I]
    down_bias: Tensor | None


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    embedding: Tensor  # [vocab, H], of the rank's token ids
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # [H]
    head: Tensor  # [vocab, H]; the embedding itself where the two are tied


def load_weights(
    folder: Path,
    config: DecoderConfig,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    shard: Shard = WHOLE,
) -> DecoderWeights:
    """The weights in checkpoint `folder` as `dtype` on `device`, or a `shard` of them.

    `config` is that of the whole model.

    Raises:
        InputError: tensors are missing, unexpected or of the wrong shape, or a file is broken.
    """
    weights = empty_weights(config, dtype, device, shard)
    targets = _targets(weights, config, shard)
    missing, unexpected = set(targets), set()
    for path in weight_files(folder):
        for stored in stored_tensors(path):
            if stored.name in targets:
                _fill(targets[stored.name], stored)
                missing.discard(stored.name)
            elif not _is_ignorable(stored.name, config, shard):
                unexpected.add(stored.name)
    for problem, names in (("lacks", missing), ("has unexpected", unexpected)):
        if names:
            raise InputError(
                f"the checkpoint {folder} {problem} tensors: {_some(names)}",
                "its config.json and its weights do not belong together",
            )
    return weights


def empty_weights(
    config: DecoderConfig,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    shard: Shard = WHOLE,
) -> DecoderWeights:
    """Uninitialised weights of the right shapes."""
    config, num_tokens = config.sharded(shard), len(shard.piece(config.vocab_size))

    def new(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    def new_if(wanted: bool, *shape: int) -> Tensor | None:
        return new(*shape) if wanted else None

    hidden, inner = config.hidden_size, config.intermediate_size
    qkv_size = config.q_size + 2 * config.kv_size
    embedding = new(num_tokens, hidden)
    layers = tuple(
        LayerWeights(
            input_norm=new(hidden),
            qkv=new(qkv_size, hidden),
            qkv_bias=new_if(config.qkv_bias, qkv_size),
            q_norm=new_if(config.qk_norm, config.head_dim),
            k_norm=new_if(config.qk_norm, config.head_dim),
            out=new(hidden, config.q_size),
            out_bias=new_if(config.out_bias, hidden),
            post_norm=new(hidden),
            gate_up=new(2 * inner, hidden),
            gate_up_bias=new_if(config.mlp_bias, 2 * inner),
            down=new(hidden, inner),
            down_bias=new_if(config.down_bias, hidden),
        )
        for _ in range(config.num_layers)
    )
    head = embedding if config.tied_embeddings else new(num_tokens, hidden)
    return DecoderWeights(embedding, layers, new(hidden), head)


class _Target(NamedTuple):
    """Where a part of a checkpoint's tensor goes: a tensor, or a slice of a fused one."""

    tensor: Tensor
    shape: tuple[int, ...]  # of the checkpoint's tensor
    part: tuple[slice, ...]


def _targets(weights: DecoderWeights, config: DecoderConfig, shard: Shard) -> dict[str, _Target]:
    vocab = shard.piece(config.vocab_size)
    targets = {
        "model.embed_tokens.weight": _rows(weights.embedding, vocab, config.vocab_size),
        "model.norm.weight": _whole(weights.final_norm),
    }
    if not config.tied_embeddings:
        targets["lm_head.weight"] = _rows(weights.head, vocab, config.vocab_size)
    for index, layer in enumerate(weights.layers):
        prefix = f"model.layers.{index}."
        targets |= {prefix + name: target for name, target in _layer_targets(layer, config, shard)}
    return targets


def _layer_targets(
    layer: LayerWeights, config: DecoderConfig, shard: Shard
) -> Iterator[tuple[str, _Target]]:
    heads = _scaled(shard.heads(config.num_heads), config.head_dim)
    kv_heads = _scaled(shard.kv_heads(config.num_kv_heads), config.head_dim)
    inner = shard.piece(config.intermediate_size)
    whole = {
        "input_layernorm.weight": layer.input_norm,
        "post_attention_layernorm.weight": layer.post_norm,
        "self_attn.q_norm.weight": layer.q_norm,
        "self_attn.k_norm.weight": layer.k_norm,
        "self_attn.o_proj.bias": layer.out_bias,
        "mlp.down_proj.bias": layer.down_bias,
    }
    yield from ((name, _whole(tensor)) for name, tensor in whole.items() if tensor is not None)
    yield "self_attn.o_proj.weight", _columns(layer.out, heads, config.q_size)
    yield "mlp.down_proj.weight", _columns(layer.down, inner, config.intermediate_size)
    ranges = {"q": (heads, config.q_size)} | dict.fromkeys("kv", (kv_heads, config.kv_size))
    for kind, qkv in (("weight", layer.qkv), ("bias", layer.qkv_bias)):
        if qkv is not None:
            parts = torch.split(qkv, [len(rows) for rows, _ in ranges.values()])
            for (letter, rows), part in zip(ranges.items(), parts, strict=True):
                yield f"self_attn.{letter}_proj.{kind}", _rows(part, *rows)
    for kind, gate_up in (("weight", layer.gate_up), ("bias", layer.gate_up_bias)):
        if gate_up is not None:
            gate, up = torch.split(gate_up, len(inner))
            yield f"mlp.gate_proj.{kind}", _rows(gate, inner, config.intermediate_size)
            yield f"mlp.up_proj.{kind}", _rows(up, inner, config.intermediate_size)


def _scaled(heads: range, head_dim: int) -> range:
    return range(heads.start * head_dim, heads.stop * head_dim)


def _whole(tensor: Tensor) -> _Target:
    shape = tuple(tensor.shape)
    return _Target(tensor, shape, tuple(slice(0, size) for size in shape))


def _rows(tensor: Tensor, rows: range, num_rows: int) -> _Target:
    """`tensor` takes those of `num_rows` rows."""
    target = _whole(tensor)
    part = (slice(rows.start, rows.stop), *target.part[1:])
    return target._replace(shape=(num_rows, *target.shape[1:]), part=part)


def _columns(tensor: Tensor, columns: range, num_columns: int) -> _Target:
    target = _whole(tensor)
    part = (target.part[0], slice(columns.start, columns.stop))
    return target._replace(shape=(target.shape[0], num_columns), part=part)


def _fill(target: _Target, stored: StoredTensor) -> None:
    if target.shape != stored.shape:
        raise InputError(
            f"tensor {stored.name} in {stored.path} has shape {list(stored.shape)}, "
            f"the config asks for {list(target.shape)}"
        )
    tensor = stored.read(target.part)
    if not tensor.is_floating_point():
        raise InputError(
            f"tensor {stored.name} in {stored.path} is {tensor.dtype}: quantised weights"
        )
    target.tensor.copy_(tensor)


def _is_ignorable(name: str, config: DecoderConfig, shard: Shard) -> bool:
    """What says nothing new (stored rope frequencies, a copy of a tied head) or the first rank has.

    That is, biases of what the ranks add up.
    """
    if shard.rank > 0 and name.endswith(("o_proj.bias", "down_proj.bias")):
        return True
    return name.endswith("rotary_emb.inv_freq") or (
        config.tied_embeddings and name == "lm_head.weight"
    )


def _some(names: set[str]) -> str:
    shown = sorted(names)[:5]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
