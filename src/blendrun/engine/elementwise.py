"""The kernels of a decoder between its products and its attention, chosen by device."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from blendrun.kernels.cpu.rms_norm import add_rms_norm
from blendrun.kernels.cpu.silu_mul import silu_mul


class Elementwise(Protocol):
    def add_rms_norm(
        self, hidden: Tensor, branch: Tensor | None, weight: Tensor, eps: float
    ) -> Tensor:
        """As `kernels.cpu.rms_norm.add_rms_norm`; `branch` may be overwritten."""

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """As `kernels.cpu.silu_mul.silu_mul`."""


@dataclass(frozen=True, slots=True)
class PlainElementwise:
    """C++ for tensors on the CPU where it compiles, plain torch for all others."""

    def add_rms_norm(
        self, hidden: Tensor, branch: Tensor | None, weight: Tensor, eps: float
    ) -> Tensor:
        return add_rms_norm(hidden, branch, weight, eps)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return silu_mul(gate_up)


PLAIN = PlainElementwise()
