"""Rotary position embedding: frequencies of each variant, and the angles of positions.

The rotation itself is a kernel (`kernels/cpu/rotary.py`). Knows no model.
"""

import math
from typing import Any

import torch
from torch import Tensor


def inverse_frequencies(
    rope: dict[str, Any], head_dim: int, max_position: int
) -> tuple[Tensor, float]:
    """float32 [head_dim/2] radians per position, and the factor on cos and sin.

    `rope` is as `data.model_support.rope_settings` returns it.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (rope["rope_theta"] ** exponents)
    kind = rope["rope_type"]
    if kind == "linear":
        return frequencies / rope["factor"], 1.0
    if kind == "llama3":
        return _llama3(frequencies, rope), 1.0
    if kind == "yarn":
        return _yarn(frequencies, rope, head_dim, max_position)
    return frequencies, 1.0


def cos_sin(positions: Tensor, frequencies: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """float32 cos and sin [T, head_dim/2] for int64 positions [T]."""
    angles = positions[:, None].float() * frequencies
    return angles.cos() * factor, angles.sin() * factor


def _llama3(frequencies: Tensor, rope: dict[str, Any]) -> Tensor:
    """Long waves are stretched by `factor`, short ones kept, those between interpolated."""
    low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    turns = rope["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    smooth: Tensor = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    stretched: Tensor = frequencies / rope["factor"]
    return (1.0 - smooth) * stretched + smooth * frequencies


def _yarn(
    frequencies: Tensor, rope: dict[str, Any], head_dim: int, max_position: int
) -> tuple[Tensor, float]:
    """YaRN (Peng et al., 2023): a linear ramp over dimensions between kept and stretched."""
    original = rope["original_max_position_embeddings"]
    factor = rope["factor"] or max_position / original

    def dimension_of(turns: float) -> float:
        return (
            head_dim
            * math.log(original / (turns * 2 * math.pi))
            / (2 * math.log(rope["rope_theta"]))
        )

    low = dimension_of(rope.get("beta_fast") or 32)
    high = dimension_of(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low if high != low else 0.001
    stretched = ((torch.arange(head_dim // 2).float() - low) / width).clamp(0.0, 1.0)
    mixed = stretched * frequencies / factor + (1.0 - stretched) * frequencies
    return mixed, _yarn_factor(rope, factor)


def _yarn_factor(rope: dict[str, Any], factor: float) -> float:
    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return scale(rope["mscale"]) / scale(rope["mscale_all_dim"])
    return scale(1.0)
