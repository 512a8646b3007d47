"""Measure this machine's CPU or GPU with a model and make a hardware profile of it."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import torch

from blendrun.cost import machine
from blendrun.cost.cost_model import CostModel
from blendrun.cost.hardware import HardwareProfile
from blendrun.cost.model_shape import ModelShape
from blendrun.data.model_files import resolve_model
from blendrun.engine.attempt import ModelLoader
from blendrun.engine.loaded_model import LoadedModel
from blendrun.engine.measured_interference import (
    Interference,
    measure_interference,
    overlap_exponent,
    split_table,
)
from blendrun.engine.measured_overlap import LEAST_GAIN, Together
from blendrun.engine.measured_rates import MeasuredRates, measure_rates
from blendrun.engine.measured_steps import CAUSES, Overheads, measure_overheads
from blendrun.engine.settings import ExecuteSettings

_GPU_MEMORY_FRAC, _GPU_CHUNK_LIMIT = 0.95, 2048


def measured_profile(
    model: str, settings: ExecuteSettings, progress: Callable[[str], None]
) -> HardwareProfile:
    """Measure with `model`, in the data type of `settings`.

    Raises:
        InputError: the model cannot be loaded.
    """
    progress("loading the model")
    files = resolve_model(model, weights=settings.load_format != "dummy")
    return profile_of(LoadedModel.load(files, settings), settings, progress)


def profile_of(
    loaded: LoadedModel, settings: ExecuteSettings, progress: Callable[[str], None]
) -> HardwareProfile:
    """Measure with a model that is loaded already, with these settings."""
    decoder, compute, model = loaded.decoder, loaded.compute, loaded.files.spec

    def measuring(what: str) -> None:
        progress(f"measuring {what}")

    rates = measure_rates(decoder, compute.attention, measuring)
    profile = as_profile(rates, f"{Path(model).name}, {settings.dtype}")
    if decoder.device.type == "cuda":
        profile = as_gpu_profile(profile, torch.cuda.get_device_properties(decoder.device))
    if compute.lanes is not None:
        with torch.inference_mode():
            measured = measure_interference(decoder, compute.attention, compute.lanes, measuring)
        profile = with_splits(profile, measured)
    progress("running a short job")
    shape = ModelShape.from_hf_config(loaded.files.config, model)
    again: ModelLoader = lambda _files, _settings: loaded  # noqa: E731
    overheads = measure_overheads(model, settings, CostModel(shape, profile), again)
    return with_overheads(profile, overheads)


def as_gpu_profile(profile: HardwareProfile, properties: Any) -> HardwareProfile:
    """`profile`, which a GPU with these properties (as torch has them) was measured into."""
    name = str(properties.name)
    return replace(
        profile,
        name=re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-"),
        kind="cuda",
        device_names=(name,),
        processor=name,
        cores=None,
        memory_bytes=float(properties.total_memory),
        memory_frac=_GPU_MEMORY_FRAC,
        chunk_limit=_GPU_CHUNK_LIMIT,
        sources={
            **profile.sources,
            "memory_bytes": "as torch tells it",
            "memory_frac": "estimate",
            "chunk_limit": "estimate: products reach their full rate well below this",
            "shared_reads": "what the engine's attention does: levels of shared prefixes",
        },
    )


def with_splits(profile: HardwareProfile, measured: Sequence[Interference]) -> HardwareProfile:
    """The profile with what its device gains by products and attention at the same time."""
    table, exponent = split_table(measured), overlap_exponent(measured)
    said = (
        f"measured {datetime.now(UTC).date()}: products and decode attention at once are "
        f"{min(table.split_gains):.2f} to {max(table.split_gains):.2f} times as fast as one after "
        f"the other, over {len(table.split_gains)} steps"
    )
    return replace(
        profile,
        overlap=exponent > 1,
        overlap_exponent=exponent,
        sources={
            **profile.sources,
            "overlap": said,
            "split_tokens": f"{said}; each with the best share of SMs for attention",
        },
        **cast(dict[str, Any], table.columns()),
    )


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
