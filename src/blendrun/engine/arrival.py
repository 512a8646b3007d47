"""Tensors on their way from a device to the CPU, which does something else meanwhile."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blendrun.kernels.marks import Mark


class Arrival:
    def __init__(self, device: torch.device, *tensors: Tensor) -> None:
        """Queues the copies of `tensors`, which are on `device`, behind what it has to do."""
        self._tensors = tuple(tensor.to("cpu", non_blocking=True) for tensor in tensors)
        self._mark = Mark(device)

    def is_there(self) -> bool:
        """Whether `wait` need not wait."""
        return self._mark.is_passed()

    def wait(self) -> tuple[npt.NDArray[Any], ...]:
        """What the tensors held, in their order."""
        self._mark.wait()
        return tuple(np.asarray(tensor.numpy()) for tensor in self._tensors)
