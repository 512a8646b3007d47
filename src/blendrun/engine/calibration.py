"""Measure this CPU with a model and make a hardware profile of it."""

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
from blendrun.engine.measured_overlap import LEAST_GAIN, Together
from blendrun.engine.measured_rates import MeasuredRates, measure_rates
from blendrun.engine.measured_steps import CAUSES, Overheads, measure_overheads
from blendrun.engine.settings import ExecuteSettings


def measured_profile(
    model: str, settings: ExecuteSettings, progress: Callable[[str], None]
) -> HardwareProfile:
    """Measure with `model`, in the data type of `settings`.

    Raises:
        InputError: the model cannot be loaded.
    """
    settings = replace(settings, device="cpu")
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
    return with_overheads(profile, overheads)


def with_overheads(profile: HardwareProfile, overheads: Overheads) -> HardwareProfile:
    """The profile with its fixed costs; its sources say which of them are unclear."""
    unclear = {
        name: f"{profile.sources[name]}; NOT CLEAR: within two standard errors of 0"
        for name in CAUSES
        if name in overheads.unclear
    }
    return replace(
        profile,
        step_overhead_s=overheads.step_s,
        token_overhead_s=overheads.token_s,
        output_overhead_s=overheads.output_s,
        unclear=overheads.unclear,
        sources={**profile.sources, **unclear},
    )


def as_profile(rates: MeasuredRates, model: str) -> HardwareProfile:
    """The profile of this CPU with these rates; its fixed costs are still 0."""
    best = max(rates.product_flops)
    measured = f"measured {datetime.now(UTC).date()}"
    together, attention = rates.together, rates.attention
    overlaps = together is not None and together.overlaps
    return HardwareProfile(
        name="this-cpu",
        kind="cpu",
        compute_flops=best,
        memory_bandwidth=attention.read_bandwidth,
        memory_bytes=machine.available_memory_bytes(),
        overlap_exponent=together.exponent if together else 1.0,
        overlap=overlaps,
        shared_reads=True,
        memory_frac=0.6,
        chunk_limit=ExecuteSettings().chunk_size,
        calibrated=True,
        model=model,
        processor=machine.processor_name(),
        cores=machine.usable_cores(),
        gemm_tokens=rates.product_tokens,
        gemm_flops=rates.product_flops,
        head_flops=rates.head_flops,
        attention_flops=attention.prefill_flops,
        shared_attention_flops=attention.shared_flops,
        sources={
            "compute_flops": f"{measured}: the best of gemm_flops",
            "memory_bandwidth": f"{measured}: K and V in decode attention",
            "overlap": f"{measured}: {_said(together)}",
            "overlap_exponent": "as overlap",
            "shared_reads": "what the engine's attention does on CPUs",
            "gemm_flops": f"{measured}: products of all layers of the model",
            "head_flops": f"{measured}: its output head",
            "attention_flops": f"{measured}: causal prefill attention",
            "shared_attention_flops": f"{measured}: decodes over a prefix that others read, too",
            "step_overhead_s": f"{measured}: fit to the steps of a short job",
            "token_overhead_s": f"{measured}: likewise; norms, activations, rotary embedding",
            "output_overhead_s": f"{measured}: likewise; attention of a decode beside its reads, "
            "drawing and writing a token",
        },
    )


def _said(together: Together | None) -> str:
    if together is None:
        return "one core does one thing at a time"
    low, high = min(together.gains), max(together.gains)
    measured = (
        f"products and KV reads at once, each with half of the cores, do {together.gain:.2f} times "
        f"what they do one after the other with all ({low:.2f} to {high:.2f} in "
        f"{len(together.gains)} rounds)"
    )
    if together.overlaps:
        return f"{measured}: they overlap"
    return f"{measured}: no gain worth having (it takes {LEAST_GAIN}), since both share the cores"
