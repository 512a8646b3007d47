"""Calibrates: a hardware profile of the device, interference curve included, as a TOML file.

It is what `blendrun calibrate --load-format dummy` measures, in less time. The job finds it.
"""

import time
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

from blendrun.cost.hardware import HardwareProfile, measured_gpu_path, measured_profile_path
from blendrun.cost.profile_file import write_profile
from blendrun.data.model_files import resolve_model
from blendrun.engine import (
    calibration,
    measured_attention,
    measured_interference,
    measured_overlap,
    measured_rates,
    measured_steps,
    stopwatch,
)
from gpu_check.model import make_model, model_loader, settings_of
from gpu_check.options import CheckOptions
from gpu_check.results import Findings

FILE = "profile.toml"
_JOB_S = 5.0  # about, of a run of the short job that overheads are fitted to


def check(options: CheckOptions, findings: Findings) -> None:
    folder = make_model(options)
    settings = settings_of(options, folder)
    begin = time.monotonic()

    def progress(what: str) -> None:
        print(f"{time.monotonic() - begin:6.1f} s  {what}", flush=True)

    progress("loading the model")
    loaded = model_loader(options)(resolve_model(str(folder), weights=False), settings)
    findings.note(attention=loaded.attention.backend_reason(), load_s=time.monotonic() - begin)
    measure = calibration.measure_interference

    def noted(*given: object) -> object:
        """The curve is kept even where what comes after it fails."""
        curve = measure(*given)
        rows = [
            asdict(m) | {"gain": m.gain, "factor": m.factor, "exponent": m.exponent} for m in curve
        ]
        findings.note(interference=rows)
        return curve

    sizes: list[tuple[Any, str, Any]] = [
        (calibration, "measure_interference", noted),
        (stopwatch, "MEASURE_S", options.measure_s),
        (measured_overlap, "ROUND_S", 0.0),  # of CPUs
        (measured_rates, "PRODUCT_TOKENS", options.product_tokens),
        (measured_attention, "CACHED_TOKENS", options.cached_tokens),
        (measured_attention, "PREFILL_TOKENS", options.prefill_tokens),
        (measured_attention, "LONG", options.long_len),
        (measured_attention, "SHORT", options.long_len // 8),
        (measured_interference, "DECODES", options.decodes),
        (measured_interference, "CHUNK_TOKENS", options.chunk_tokens),
        (measured_interference, "MEASURE_S", options.measure_s / 2),
        (measured_steps, "_WALL_S", _JOB_S),
        (measured_steps, "_MOST_REQUESTS", 4 if options.dry_run else 96),
    ]
    with ExitStack() as changed:
        for module, name, value in sizes:
            changed.enter_context(patch.object(module, name, value))
        profile = calibration.profile_of(loaded, settings, progress)
    comment = f"Measured by gpu-check on {datetime.now(UTC).date()} with {profile.model}."
    _write(profile, options, comment)
    text = (options.work / FILE).read_text(encoding="utf-8")
    findings.note(profile=profile.to_table(), toml=text)


def _write(profile: HardwareProfile, options: CheckOptions, comment: str) -> None:
    """Beside the result, and where the engine of the next section looks for it."""
    is_gpu = profile.kind == "cuda"
    found = measured_gpu_path(profile.device_names[0]) if is_gpu else measured_profile_path()
    for path in (options.work / FILE, found):
        write_profile(profile, path, comment)
