"""The short table at the end of a check, of what its sections found."""

from collections.abc import Iterator, Mapping
from typing import Any

_STEPS = {"off": "whole", "auto": "auto", "on": "parts"}
_RUN = "{:9} {:8} {:>12} {:>12} {:>10} {:>11}"


def lines(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """`found`: by section."""
    for name, section in found.items():
        error = section.get("error")
        yield f"{name:10} {section['seconds']:6.1f} s  {'ok' if error is None else error}"
    yield ""
    yield from _ceilings(found.get("ceilings", {}))
    yield from _numerics(found.get("numerics", {}))
    yield from _interference(found.get("profile", {}))
    yield from _runs(found.get("job", {}))


def _ceilings(found: Mapping[str, Any]) -> Iterator[str]:
    if "copy_bytes_per_s" in found:
        yield f"copy       {found['copy_bytes_per_s'] / 1e9:,.0f} GB/s (read and written)"
    if "best_gemm_flops" in found:
        yield f"products   {found['best_gemm_flops'] / 1e12:,.1f} TFLOP/s at best"


def _numerics(found: Mapping[str, Any]) -> Iterator[str]:
    for name, error in found.get("worst", {}).items():
        yield f"{name:10} within {error:.1e} of float64"
    for what in found.get("failed", ()):
        yield f"WRONG      {what}"
    for reason in found.get("missing", ()):
        yield f"without    {reason}"


def _interference(found: Mapping[str, Any]) -> Iterator[str]:
    curve = found.get("interference")
    if not curve:
        return
    best = max(curve, key=lambda row: row["gain"])
    yield (
        f"overlap    gain {min(row['gain'] for row in curve):.2f} to {best['gain']:.2f}; best with "
        f"{best['tokens']} tokens beside {best['context_len']} of context, "
        f"{best['memory_frac']:.0%} of SMs for attention"
    )


def _runs(found: Mapping[str, Any]) -> Iterator[str]:
    if not found.get("runs"):
        return
    yield ""
    yield _RUN.format("policy", "steps", "tokens/s", "of optimum", "predicted", "vs dfs off")
    runs = found["runs"]
    base = next((r for r in runs if (r["policy"], r["overlap"]) == ("dfs", "off")), None)
    for run in runs:
        rate = run["tokens_per_s"]
        yield _RUN.format(
            run["policy"],
            "in turn" if run["schedule"] == "sequential" else _STEPS[run["overlap"]],
            f"{rate:,.0f}",
            f"{run['once_practical_frac']:.1%}",
            f"{run['prediction_error']:+.1%}",
            f"{rate / base['tokens_per_s']:.2f}" if base else "",
        )
    if "same_when_ahead_frac" in found:
        yield f"{found['same_when_ahead_frac']:.1%} of the answers are those of steps in turn"
