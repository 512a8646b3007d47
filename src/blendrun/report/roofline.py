"""The picture of a measured machine: rates of products and attention under its two ceilings."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from blendrun.cost.hardware import HardwareProfile
from blendrun.report.palette import COLOURS
from blendrun.units import GIGA

_WEIGHT_BYTES = 2  # bf16: a product over n tokens does 2 n FLOP for each weight


def plot_roofline(profile: HardwareProfile, path: Path) -> None:
    """Save FLOP/s against FLOP per byte of weights read, and where steps reach the ceiling."""
    intensity = np.array(profile.gemm_tokens) * 2 / _WEIGHT_BYTES
    rates = np.array(profile.gemm_flops) / GIGA
    best = profile.effective_flops / GIGA
    full = next(n for n, r in zip(profile.gemm_tokens, rates, strict=True) if r >= 0.9 * best)
    cores = "" if profile.cores is None else f", {profile.cores} cores"
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    reach = np.geomspace(0.5, 2 * intensity[-1], 100)
    slope = reach * profile.effective_bandwidth / GIGA
    axes.plot(
        reach,
        np.minimum(slope, best),
        color="#555555",
        label=f"KV reads at {profile.effective_bandwidth / GIGA:.1f} GB/s, "
        f"products at {best:.0f} GFLOP/s",
    )
    axes.plot(
        intensity, rates, marker="o", color=COLOURS[0], label="products of the layers, by tokens"
    )
    if profile.attention_flops is not None:
        axes.axhline(
            profile.attention_flops / GIGA, color=COLOURS[1], ls="--", label="prefill attention"
        )
    if profile.shared_attention_flops is not None:
        axes.axhline(
            profile.shared_attention_flops / GIGA,
            color=COLOURS[2],
            ls=":",
            label="decodes over a prefix that others read, too",
        )
    for tokens, x, y in zip(profile.gemm_tokens, intensity, rates, strict=True):
        if tokens in (1, 16, 64, 256, 2048):
            axes.annotate(
                f"{tokens}", (x, y), textcoords="offset points", xytext=(4, -12), fontsize=8
            )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("FLOP per byte of weights or KV (bf16 products: tokens of the step)")
    axes.set_ylabel("GFLOP/s")
    axes.set_title(
        f"{profile.processor or profile.name}{cores}: "
        f"steps are full from {full} tokens on\nmeasured with {profile.model}"
    )
    axes.grid(visible=True, which="both", alpha=0.2)
    axes.legend(loc="lower right")
    figure.savefig(path)
