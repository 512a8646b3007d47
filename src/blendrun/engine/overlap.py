"""Steps in parts that run at the same time: how each is divided, and who runs the parts."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from blendrun.cost.cost_model import CostModel
from blendrun.engine.lanes import Lanes
from blendrun.engine.split_choice import ChooseSplit, OverlapMode, choose_split
from blendrun.engine.step_cuts import StepShape, cut_step
from blendrun.errors import InputError
from blendrun.tree.prefix_tree import Int32, Int64


class LaneMaker(Protocol):
    def __call__(self, memory_frac: float) -> Lanes:
        """Lanes of which decode attention has that share of the SMs for itself; 0: none."""

    def divides(self) -> bool:
        """Whether any share but 0 can be had."""


class Division(NamedTuple):
    bounds: Int64  # of a step's parts, see `cut_step`
    memory_frac: float  # of the SMs, for decode attention alone; 0: they are not divided


@dataclass(frozen=True, slots=True, eq=False)
class Overlap:
    """The parts of steps; of a tensor-parallel group the first rank says them."""

    choose: ChooseSplit

    def divide(self, num_tokens: Int32, context_len: Int32) -> Division | None:
        """None: a step of these sequences stays whole."""
        split = self.choose(StepShape.of(num_tokens, context_len))
        if split.num_parts < 2:
            return None
        bounds = cut_step(num_tokens, context_len, split.num_parts)
        if len(bounds) < 3:
            return None
        return Division(bounds, split.memory_frac)


def choose_overlap(
    mode: OverlapMode, lanes: LaneMaker | None, cost: CostModel, pod: bool
) -> tuple[Overlap | None, str]:
    """What divides steps, None: nothing; and why, in one line.

    Raises:
        InputError: it is asked for and cannot be had.
    """
    problem = None
    if lanes is None:
        problem = "this device runs one thing at a time"
    elif pod:
        problem = "--pod has prefill and decode attention in one launch"
    if lanes is None or problem is not None:
        if mode == "on":
            raise InputError(f"--overlap on: {problem}", "leave it out")
        return None, f"{problem}"
    choose, reason = choose_split(mode, cost)
    return None if choose is None else Overlap(choose), reason
