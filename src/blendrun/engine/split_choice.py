"""Into how many parts a step is divided, and which share of the SMs decode attention gets."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from blendrun.cost.arrays import Floats
from blendrun.cost.cost_model import CostModel
from blendrun.cost.hardware import HardwareProfile
from blendrun.engine.step_cuts import StepShape

OverlapMode = Literal["auto", "on", "off"]


@dataclass(frozen=True, slots=True)
class Split:
    num_parts: int
    memory_frac: float = 0.0  # of the SMs, for decode attention alone; 0: they are not divided


WHOLE = Split(1)
ChooseSplit = Callable[[StepShape], Split]


def always_two(shape: StepShape) -> Split:
    """Two parts, gain or not."""
    del shape
    return Split(2)


@dataclass(frozen=True, slots=True, eq=False)
class ByTable:
    """The best split of the measured step that is nearest, in powers of two."""

    hardware: HardwareProfile  # with a table
    least_gain: float = 1.0  # steps that gain no more stay whole

    def __call__(self, shape: StepShape) -> Split:
        if not shape.decodes:
            return WHOLE
        hardware = self.hardware
        far = _steps(hardware.split_tokens, shape.tokens)
        far += _steps(hardware.split_contexts, shape.context_len)
        nearest = int(np.argmin(far))
        if hardware.split_gains[nearest] <= self.least_gain:
            return WHOLE
        return Split(hardware.split_parts[nearest], hardware.split_memory_fracs[nearest])


@dataclass(frozen=True, slots=True, eq=False)
class ByCost:
    """Two parts where the cost model says so: both read the weights, and KV reads hide."""

    cost: CostModel

    def __call__(self, shape: StepShape) -> Split:
        if not shape.decodes or shape.tokens < 2:
            return WHOLE
        halves = (shape.decodes, shape.chunk_tokens)
        if not shape.chunk_tokens:
            halves = (shape.decodes - shape.decodes // 2, shape.decodes // 2)
        reads_s = shape.context_len * self.cost.context_s
        whole_s = self._products_s(shape.tokens) + reads_s
        products_s = sum(self._products_s(tokens) for tokens in halves)
        weights_s = float(self.cost.step_weight_read_s(halves).sum())
        # reading weights and reading KV never hide behind each other
        parts_s = max(float(self.cost.overlapped_s(products_s, reads_s)), weights_s + reads_s)
        # that collectives hide was never measured: they count in full, those of each part
        whole_s += float(self.cost.collective_s(shape.tokens))
        parts_s += float(self.cost.collective_s(halves).sum())
        return Split(2) if parts_s < whole_s else WHOLE

    def _products_s(self, tokens: int) -> float:
        cost = self.cost
        floor_s = cost.step_floor_s(tokens)
        return float(cost.with_weight_floor(cost.step_products_s(tokens), floor_s))


def choose_split(mode: OverlapMode, cost: CostModel) -> tuple[ChooseSplit | None, str]:
    """How steps are divided, None: not at all; and why, in one line."""
    hardware = cost.hardware
    if mode == "off":
        return None, "it was asked for"
    if hardware.split_tokens:
        least = 1.0 if mode == "auto" else 0.0
        return ByTable(hardware, least), f"as measured on {hardware.name}"
    if mode == "on":
        return always_two, f"it was asked for; {hardware.name} has no measured splits"
    if not hardware.overlaps:
        return None, f"{hardware.name} gains nothing by it"
    return ByCost(cost), f"where the cost model says so; {hardware.name} has no measured splits"


def _steps(sizes: tuple[int, ...], size: int) -> Floats:
    """Powers of two between `size` and each of `sizes`."""
    return np.asarray(np.abs(np.log2(np.maximum(sizes, 1)) - np.log2(max(size, 1))), np.float64)
