"""Measure this CPU with a model and make a hardware profile of it."""

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from blendrun.cost import machine
from blendrun.cost.cost_model import CostModel
from blendrun.cost.hardware import HardwareProfile
from blendrun.cost.model_shape import ModelShape
from blendrun.data.model_files import resolve_model
from blendrun.engine.assembly import LoadedModel
from blendrun.engine.measured_rates import MeasuredRates, Together, measure_rates
from blendrun.engine.measured_steps import measure_overheads
from blendrun.engine.settings import ExecuteSettings

_NO_OVERLAP = 1.1  # a gain of up to 6 % for equal parts, within what timings vary
_MOST_OVERLAP = 8.0  # beyond, the exponent is noise


def measured_profile(
    model: str, settings: ExecuteSettings, progress: Callable[[str], None]
) -> HardwareProfile:
    """Measure with `model`, in the data type of `settings`.

    Raises:
        InputError: the model cannot be loaded.
    """
    progress("loading the model")
    files = resolve_model(model, weights=True)
    loaded = LoadedModel.load(files, settings)
    shape = ModelShape.from_hf_config(files.config, model)
    rates = measure_rates(
        loaded.decoder, loaded.attention, lambda what: progress(f"measuring {what}")
    )
    profile = as_profile(rates, f"{Path(model).name}, {settings.dtype}")
    progress("running a short job")
    overheads = measure_overheads(model, settings, CostModel(shape, profile))
    return replace(
        profile,
        step_overhead_s=overheads.step_s,
        token_overhead_s=overheads.token_s,
        output_overhead_s=overheads.output_s,
    )


def as_profile(rates: MeasuredRates, model: str) -> HardwareProfile:
    """The profile of this CPU with these rates; its fixed costs are still 0."""
    best = max(rates.product_flops)
    measured = f"measured {datetime.now(UTC).date()}"
    exponent = overlap_exponent(rates.together)
    return HardwareProfile(
        name="this-cpu",
        kind="cpu",
        compute_flops=best,
        memory_bandwidth=rates.read_bandwidth,
        memory_bytes=machine.available_memory_bytes(),
        overlap_exponent=exponent,
        memory_frac=0.6,
        chunk_limit=ExecuteSettings().chunk_size,
        calibrated=True,
        model=model,
        processor=machine.processor_name(),
        cores=machine.usable_cores(),
        gemm_tokens=rates.product_tokens,
        gemm_flops=rates.product_flops,
        attention_flops=rates.prefill_flops,
        sources={
            "compute_flops": f"{measured}: the best of gemm_flops",
            "memory_bandwidth": f"{measured}: decode attention",
            "overlap_exponent": f"{measured}: {_said(rates.together)}",
            "gemm_flops": f"{measured}: products of all layers of the model",
            "attention_flops": f"{measured}: causal prefill attention",
            "step_overhead_s": f"{measured}: fit to the steps of a short job, as the next two",
            "token_overhead_s": "norms, activations, rotary embedding",
            "output_overhead_s": "drawing and writing a token",
        },
    )


def overlap_exponent(together: Together | None) -> float:
    """The q with which (products^q + reads^q)^(1/q) is the time of both at once; at least 1."""
    if together is None or together.both_s >= together.products_s + together.reads_s:
        return 1.0
    longer = max(together.products_s, together.reads_s)
    low, high = 1.0, _MOST_OVERLAP
    while high - low > 1e-3:
        middle = (low + high) / 2
        both_s = math.pow(
            (together.products_s / longer) ** middle + (together.reads_s / longer) ** middle,
            1 / middle,
        )
        low, high = (middle, high) if both_s * longer > together.both_s else (low, middle)
    return 1.0 if low < _NO_OVERLAP else round(low, 2)


def _said(together: Together | None) -> str:
    if together is None:
        return "one core does one thing at a time"
    apart = together.products_s + together.reads_s
    return (
        f"products {together.products_s:.3f} s and KV reads {together.reads_s:.3f} s with all "
        f"cores one after the other, {together.both_s:.3f} s at once with half of them each: "
        f"{apart / together.both_s:.2f} times as fast"
    )
