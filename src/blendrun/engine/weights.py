"""Safetensors weights of the Llama family, fused for the decoder while they are read.

Every tensor of the checkpoint is copied straight into its place (cast on the way), so that the
peak is the model plus one tensor. Knows file names and tensor names; computes nothing.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from blendrun.engine.decoder_config import DecoderConfig
from blendrun.errors import InputError

_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer; matrices are [out, in] as in torch's linear. H hidden, D head_dim, I mlp."""

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
    embedding: Tensor  # [vocab, H]
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # [H]
    head: Tensor  # [vocab, H]; the embedding itself where the two are tied


def load_weights(
    folder: Path,
    config: DecoderConfig,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> DecoderWeights:
    """The weights in checkpoint `folder` as `dtype` on `device`.

    Raises:
        InputError: tensors are missing, unexpected or of the wrong shape, or a file is broken.
    """
    weights = empty_weights(config, dtype, device)
    targets = _targets(weights, config)
    missing, unexpected = set(targets), set()
    for path in _weight_files(folder):
        for name, tensor in _read_tensors(path):
            if name in targets:
                _fill(targets[name], tensor, name, path)
                missing.discard(name)
            elif not _is_ignorable(name, config):
                unexpected.add(name)
    for problem, names in (("lacks", missing), ("has unexpected", unexpected)):
        if names:
            raise InputError(
                f"the checkpoint {folder} {problem} tensors: {_some(names)}",
                "its config.json and its weights do not belong together",
            )
    return weights


def empty_weights(
    config: DecoderConfig, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> DecoderWeights:
    """Uninitialised weights of the right shapes."""

    def new(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    def new_if(wanted: bool, *shape: int) -> Tensor | None:
        return new(*shape) if wanted else None

    hidden, inner = config.hidden_size, config.intermediate_size
    qkv_size = config.q_size + 2 * config.kv_size
    embedding = new(config.vocab_size, hidden)
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
            down_bias=new_if(config.mlp_bias, hidden),
        )
        for _ in range(config.num_layers)
    )
    head = embedding if config.tied_embeddings else new(config.vocab_size, hidden)
    return DecoderWeights(embedding, layers, new(hidden), head)


def _targets(weights: DecoderWeights, config: DecoderConfig) -> dict[str, Tensor]:
    """Where each tensor of the checkpoint goes: a tensor, or a slice of a fused one."""
    targets = {
        "model.embed_tokens.weight": weights.embedding,
        "model.norm.weight": weights.final_norm,
    }
    if not config.tied_embeddings:
        targets["lm_head.weight"] = weights.head
    for index, layer in enumerate(weights.layers):
        prefix = f"model.layers.{index}."
        targets |= {prefix + name: tensor for name, tensor in _layer_targets(layer, config)}
    return targets


def _layer_targets(layer: LayerWeights, config: DecoderConfig) -> Iterator[tuple[str, Tensor]]:
    qkv_sizes = [config.q_size, config.kv_size, config.kv_size]
    whole = {
        "input_layernorm.weight": layer.input_norm,
        "post_attention_layernorm.weight": layer.post_norm,
        "self_attn.q_norm.weight": layer.q_norm,
        "self_attn.k_norm.weight": layer.k_norm,
        "self_attn.o_proj.weight": layer.out,
        "self_attn.o_proj.bias": layer.out_bias,
        "mlp.down_proj.weight": layer.down,
        "mlp.down_proj.bias": layer.down_bias,
    }
    yield from ((name, tensor) for name, tensor in whole.items() if tensor is not None)
    for kind, qkv in (("weight", layer.qkv), ("bias", layer.qkv_bias)):
        if qkv is not None:
            for letter, part in zip("qkv", torch.split(qkv, qkv_sizes), strict=True):
                yield f"self_attn.{letter}_proj.{kind}", part
    for kind, gate_up in (("weight", layer.gate_up), ("bias", layer.gate_up_bias)):
        if gate_up is not None:
            gate, up = torch.split(gate_up, config.intermediate_size)
            yield f"mlp.gate_proj.{kind}", gate
            yield f"mlp.up_proj.{kind}", up


def _weight_files(folder: Path) -> list[Path]:
    index = folder / _INDEX
    if index.is_file():
        try:
            weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            return sorted({folder / name for name in weight_map.values()})
        except (ValueError, KeyError, AttributeError) as error:
            raise InputError(f"{index} is not a valid index of weights: {error!r}") from error
    files = sorted(folder.glob("*.safetensors"))
    single = folder / "model.safetensors"
    if single in files:
        return [single]
    if len(files) != 1:
        raise InputError(f"{folder} has {len(files)} *.safetensors files and no {_INDEX}")
    return files


def _read_tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                yield name, file.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot read weights from {path}: {error}") from error


def _fill(target: Tensor, tensor: Tensor, name: str, path: Path) -> None:
    if target.shape != tensor.shape:
        raise InputError(
            f"tensor {name} in {path} has shape {list(tensor.shape)}, "
            f"the config asks for {list(target.shape)}"
        )
    if not tensor.is_floating_point():
        raise InputError(f"tensor {name} in {path} is {tensor.dtype}: quantised weights")
    target.copy_(tensor)


def _is_ignorable(name: str, config: DecoderConfig) -> bool:
    """Tensors that say nothing new: stored rope frequencies, a copy of a tied head."""
    return name.endswith("rotary_emb.inv_freq") or (
        config.tied_embeddings and name == "lm_head.weight"
    )


def _some(names: set[str]) -> str:
    shown = sorted(names)[:5]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
