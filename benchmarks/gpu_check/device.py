"""The device of a check."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from gpu_check.options import CheckOptions


@dataclass(frozen=True, slots=True)
class Device:
    device: torch.device
    name: str
    dtype: torch.dtype
    wait: Callable[[], object] | None  # until the device is through; None: it always is


def open_device(options: CheckOptions) -> Device:
    """Raises RuntimeError where there is no GPU and the run is none without one."""
    if options.dry_run:
        return Device(torch.device("cpu"), "no device (dry run)", torch.float32, None)
    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no GPU; --dry-run needs none")
    device = torch.device("cuda", torch.cuda.current_device())
    name = torch.cuda.get_device_name(device)
    return Device(device, name, torch.bfloat16, lambda: torch.cuda.synchronize(device))
