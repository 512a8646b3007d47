"""Tensors of a GGUF file under their Hugging Face names, dequantized piece by piece.

Knows llama.cpp's tensor names and its row order of q and k; knows no metadata and writes no file.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from blendrun.data.safetensors_stream import NamedSource
from blendrun.errors import InputError
from blendrun.units import MIB

_PIECE_BYTES = 64 * MIB
_TOP_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NOT_WEIGHTS = ("rope_freqs.weight",)


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor of a GGUF file as float32 pieces; `rows` reorders it, None = as stored."""

    data: np.ndarray
    tensor_type: Any
    shape: tuple[int, ...]
    rows: np.ndarray | None = None

    def pieces(self) -> Iterator[np.ndarray]:
        from gguf.quants import dequantize

        if len(self.shape) < 2:
            flat = dequantize(self.data, self.tensor_type)
            yield flat if self.rows is None else flat[self.rows]
            return
        num_rows = self.shape[0]
        step = max(1, _PIECE_BYTES // (4 * int(np.prod(self.shape[1:]))))
        for start in range(0, num_rows, step):
            part = slice(start, start + step)
            rows = self.data[part] if self.rows is None else self.data[self.rows[part]]
            yield dequantize(rows, self.tensor_type)


def hf_name(gguf_name: str) -> str | None:
    """The Hugging Face name of a tensor, or None where this family has no such tensor."""
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", gguf_name)
    if match is None:
        return None
    block, stem, kind = match.groups()
    name = _TOP_NAMES.get(stem) if block is None else _BLOCK_NAMES.get(stem)
    if name is None:
        return None
    return f"{name}.{kind}" if block is None else f"model.layers.{block}.{name}.{kind}"


def hf_rows(num_rows: int, num_heads: int) -> np.ndarray:
    """Row order that undoes llama.cpp's permutation of q or k.

    llama.cpp rotates neighbouring pairs (2i, 2i+1) of a head, Hugging Face the pairs
    (i, i + head_dim/2); its converter interleaves the two halves of each head.
    """
    half = num_rows // num_heads // 2
    return np.arange(num_rows).reshape(num_heads, half, 2).swapaxes(1, 2).reshape(-1)


def list_tensors(reader: Any, architecture: str, config: dict[str, Any]) -> list[NamedSource]:
    """Every weight in the file under its Hugging Face name.

    Raises:
        InputError: a tensor that the Llama family does not have.
    """
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
    named = []
    for tensor in reader.tensors:
        if tensor.name in _NOT_WEIGHTS:
            continue
        name = hf_name(tensor.name)
        if name is None:
            raise InputError(f"GGUF tensor {tensor.name!r} belongs to no model that blendrun runs")
        shape = tuple(int(size) for size in reversed(tensor.shape))
        match = re.search(r"self_attn\.([qk])_proj", name)
        permuted = architecture == "llama" and match is not None
        rows = hf_rows(shape[0], heads[match[1]]) if permuted and match else None
        named.append(NamedSource(name, GgufTensor(tensor.data, tensor.tensor_type, shape, rows)))
    return named
