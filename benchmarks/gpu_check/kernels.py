"""What can run a model on the device of a check: kernels of the machine, or those of a dry run."""

import os
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec

import torch

from blendrun.engine.compute import Compute, flashinfer_compute, torch_compute, triton_compute
from blendrun.kernels.flashinfer.library import find_flashinfer
from gpu_check.options import CheckOptions


def computes(options: CheckOptions, device: torch.device) -> tuple[dict[str, Compute], list[str]]:
    """What can run a model here, by name, and why others are missing; FlashInfer, which may have
    to compile for minutes, last."""
    if options.dry_run:
        lanes = import_module("tiny_lanes")
        stand_in = import_module("tiny_devices").stand_in_compute()
        made = {"flashinfer": replace(stand_in, lanes=lanes.OneKind(lanes.InlineLanes()))}
        if find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") == "1":
            made["triton"] = triton_compute(device, "Triton's interpreter")
        return made, []
    found: dict[str, Compute] = {}
    reasons = []
    if find_spec("triton") is not None:
        found["triton"] = triton_compute(device, "Triton")
    else:
        reasons.append("Triton is not installed")
    found["torch"] = torch_compute(device, "plain torch")
    library, reason = find_flashinfer()
    if library is not None:
        found["flashinfer"] = flashinfer_compute(library, device, reason)
    else:
        reasons.append(reason)
    return found, reasons
