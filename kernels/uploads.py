"""Arrays on their way from the CPU to a device that is still at work on what it had before.

A plain copy waits until the device is through; one out of pinned memory is queued like a kernel.
"""

import torch
from torch import Tensor


def upload(values: Tensor, device: torch.device) -> Tensor:
    """`values`, which are on the CPU, on `device`."""
    return pinned(values, device).to(device, non_blocking=True)


def pinned(values: Tensor, device: torch.device) -> Tensor:
    """`values` on the CPU, where `device` can fetch them from by itself."""
    return values.pin_memory() if device.type == "cuda" else values
