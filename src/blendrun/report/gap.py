"""Where the wall time went: parts that add up to it, from the ideal optimum upward.

The definitions are in docs/report.md. Seconds are on the clock: those of R ranks are divided by R.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blendrun.cost.cost_model import CostModel
from blendrun.data.manifest import Attempt
from blendrun.report.held_back import Held
from blendrun.report.priced_steps import Lane, PricedSteps
from blendrun.report.rank_pace import RankPace

# in the order in which they are told; up to the third they make up the practical optimum
BOUND = ("ideal", "interference", "fewest_steps")
LOSSES = (
    "lost_sharing", "repeated_reads", "imbalance", "few_pages", "small_steps", "no_overlap",
    "ramp_up", "tail", "preemption", "wrong_lengths", "fixed_costs", "communication",
    "scheduling", "files", "loading", "rank_imbalance",
)  # fmt: skip
UNEXPLAINED = "unexplained"
PARTS = (*BOUND, *LOSSES, UNEXPLAINED)


@dataclass(frozen=True, slots=True)
class Work:
    """What a job must do at least, in rank-seconds."""

    compute_s: float  # G: shared prefixes computed once
    memory_s: float  # K: KV reads, as few as the backend can do with
    min_steps: int
    unique_tokens: int  # prompt tokens that must be computed


@dataclass(frozen=True, slots=True)
class Gap:
    """Seconds by part, in the order of PARTS; they add up to `wall_s`."""

    wall_s: float
    seconds: Mapping[str, float]
    gradient: tuple[float, float]  # (a, b) at the job's totals
    phase: npt.NDArray[np.int8]  # [S] -1 ramp-up, 0 the middle, 1 tail
    loss_s: npt.NDArray[np.float64]  # [S] of each step against the bound: T − a·g − b·k

    def part_of_wall(self, part: str) -> float:
        return self.seconds[part] / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def practical_s(self) -> float:
        """Wall time at the practical optimum."""
        return sum(self.seconds[name] for name in BOUND)

    @property
    def largest(self) -> str | None:
        """The part above the practical optimum that costs most; None where none costs anything."""
        names = ("fewest_steps", *LOSSES, UNEXPLAINED)
        name = max(names, key=lambda part: self.seconds[part])
        return name if self.seconds[name] > 1e-3 * self.wall_s else None


def explain(
    steps: PricedSteps,
    work: Work | None,
    cost: CostModel,
    attempts: Sequence[Attempt],
    num_ranks: int,
    held: npt.NDArray[np.int8] | None = None,
) -> Gap:
    """Split the wall time of a run.

    Args:
        work: None: of a run that is not complete; then the work done so far is the whole.
        attempts: of the run, or the only one where all ranks run in it.
        held: [S] a `Held` of each step; None: not known.
    """
    if work is None:
        done_s, read_s = float(steps.work_s.sum()), float(steps.read_s.sum())
        prefilled = int(steps.prefill_tokens.sum() - steps.recomputed_tokens.sum())
        work = Work(done_s, read_s, 0, prefilled)
    bound, phase = _bound(work, cost), _phases(steps)
    clock = _clock(steps, attempts, num_ranks)
    more_s = bound.a * (float(steps.busy_s.sum()) - bound.floored_s)
    # the bound has all ranks step as long as the longest answer; one that waited did not
    waited_s = min(max(-more_s, 0.0), clock["rank_imbalance"] * num_ranks)
    clock["rank_imbalance"] -= waited_s / num_ranks
    clock["rank_imbalance"] += RankPace.of(steps).lost_s / num_ranks
    lacks_pages = np.zeros(len(phase), np.bool_) if held is None else held == Held.PAGES
    of_ranks = {
        **bound.seconds,
        **_in_steps(steps, work, cost, bound, more_s + waited_s, phase, lacks_pages),
        **_outside(steps, bound.fixed_s),
    }
    seconds = {name: of_all / num_ranks for name, of_all in of_ranks.items()} | clock
    wall_s = seconds.pop("wall")
    seconds |= {"wrong_lengths": 0.0, UNEXPLAINED: wall_s - sum(seconds.values())}
    loss_s = steps.step_s - bound.a * steps.busy_s - bound.b * steps.read_s
    ordered = {name: seconds[name] for name in PARTS}
    return Gap(wall_s, ordered, (bound.a, bound.b), phase, loss_s)


@dataclass(frozen=True, slots=True)
class _Bound:
    """The practical optimum of a job, in rank-seconds."""

    seconds: Mapping[str, float]  # its parts
    floored_s: float  # G': compute, with the weights of the fewest steps read
    fixed_s: float  # fixed costs of these steps
    a: float  # the gradient of the interference curve at (G', K)
    b: float


def _bound(work: Work, cost: CostModel) -> _Bound:
    floored_s = float(cost.with_weight_floor(work.compute_s, work.min_steps * cost.weight_read_s))
    fixed_s = work.min_steps * cost.hardware.step_overhead_s
    ideal_s = max(work.compute_s, work.memory_s)
    together_s = float(cost.overlapped_s(work.compute_s, work.memory_s))
    seconds = {
        "ideal": ideal_s,
        "interference": together_s - ideal_s,
        "fewest_steps": float(cost.overlapped_s(floored_s, work.memory_s)) - together_s + fixed_s,
    }
    a, b = cost.overlap_gradient(floored_s, work.memory_s)
    return _Bound(seconds, floored_s, fixed_s, a, b)


def _in_steps(
    steps: PricedSteps,
    work: Work,
    cost: CostModel,
    bound: _Bound,
    more_s: float,
    phase: npt.NDArray[np.int8],
    lacks_pages: npt.NDArray[np.bool_],
) -> dict[str, float]:
    """What the model's part of steps takes beyond the bound; `more_s` of it is more compute."""
    twice = _computed_twice(steps, work, bound.a, more_s)
    small_s = more_s - sum(twice.values())
    over_s = steps.busy_s - steps.work_s
    for_pages = np.array([over_s[lacks_pages].sum()])
    in_small = np.concatenate([_by_phase(np.where(lacks_pages, 0.0, over_s), phase), for_pages])
    in_small = np.maximum(in_small, 0.0)
    small = small_s * (in_small / in_small.sum() if in_small.any() else np.eye(4)[1])
    overlapped_s = cost.overlapped_s(steps.busy_s, steps.read_s)
    lost_s = overlapped_s - bound.a * steps.busy_s - bound.b * steps.read_s
    mix = _by_phase(lost_s, phase)
    return {
        **twice,
        "few_pages": float(small[3]),
        "small_steps": float(small[1]),
        "imbalance": float(mix[1]),
        "ramp_up": float(small[0] + mix[0]),
        "tail": float(small[2] + mix[2]),
        "repeated_reads": bound.b * (float(steps.read_s.sum()) - work.memory_s),
        "no_overlap": float((steps.run_s - overlapped_s).sum()),
        "communication": float(steps.collective_s.sum()),
    }


def _computed_twice(steps: PricedSteps, work: Work, a: float, more_s: float) -> dict[str, float]:
    """Compute beyond the least there is, by its cause; at most the `more_s` that steps took.

    Where steps wait for weights anyway, computing more costs less than its price.
    """
    price_s = a * (float(steps.work_s.sum()) - work.compute_s)
    twice_s = max(min(price_s, more_s), 0.0)
    recomputed = int(steps.recomputed_tokens.sum())
    lost = max(int(steps.prefill_tokens.sum()) - recomputed - work.unique_tokens, 0)
    part = recomputed / (recomputed + lost) if recomputed + lost else 0.0
    return {"lost_sharing": twice_s * (1 - part), "preemption": twice_s * part}


def _outside(steps: PricedSteps, least_fixed_s: float) -> dict[str, float]:
    """Fixed costs beyond those of the bound, and what was measured outside of the model.

    A profile's fixed costs are fitted to whole steps: scheduling is in them.
    """
    measured_s = float(steps.outside_s.sum())
    fixed_s = max(float(steps.fixed_s.sum()) - measured_s, 0.0)
    in_fixed_s = min(least_fixed_s, fixed_s)
    return {
        "fixed_costs": fixed_s - in_fixed_s,
        "scheduling": measured_s - (least_fixed_s - in_fixed_s),
    }


def _clock(steps: PricedSteps, attempts: Sequence[Attempt], num_ranks: int) -> dict[str, float]:
    """What passed on the clock outside of steps, in seconds of the whole."""
    wall_s = load_s = files_s = waiting_s = 0.0
    for number, attempt in enumerate(attempts):
        lanes = [lane for lane in steps.lanes if lane.attempt == number]
        begins = [float(steps.start_s[lane.steps].min()) for lane in lanes]
        ends = [float(steps.end_s[lane.steps].max()) for lane in lanes]
        elapsed_s = max(ends, default=0.0)
        loaded_s = attempt.load_s or 0.0
        # a killed attempt has no end
        whole_s = max(attempt.wall_s or 0.0, loaded_s + elapsed_s)
        wall_s, load_s = wall_s + whole_s, load_s + loaded_s
        files_s += whole_s - loaded_s - elapsed_s
        for lane, begin_s, end_s in zip(lanes, begins, ends, strict=True):
            late_s = begin_s - min(begins)
            files_s += (end_s - late_s - float(steps.step_s[lane.steps].sum())) / num_ranks
            waiting_s += (late_s + elapsed_s - end_s) / num_ranks
        waiting_s += (num_ranks - len(lanes)) * elapsed_s / num_ranks  # ranks without work
    return {"wall": wall_s, "loading": load_s, "files": files_s, "rank_imbalance": waiting_s}


def _phases(steps: PricedSteps) -> npt.NDArray[np.int8]:
    phase = np.zeros(len(steps.step_s), np.int8)
    for lane in steps.lanes:
        first, last = _middle(steps, lane)
        start, stop = lane.steps.start, lane.steps.stop
        phase[start : start + first] = -1
        phase[start + last : stop] = 1
    return phase


def _middle(steps: PricedSteps, lane: Lane) -> tuple[int, int]:
    """First step with as many requests as on average, and the one after which none come in."""
    running, seconds = steps.running[lane.steps], steps.step_s[lane.steps]
    mean = float(running @ seconds) / max(float(seconds.sum()), 1e-30)
    first = int(np.argmax(running >= mean))
    comes_in = (steps.waiting[lane.steps] > 0) | (steps.prefill_tokens[lane.steps] > 0)
    return first, max(first, int(np.flatnonzero(comes_in).max(initial=-1)) + 1)


def _by_phase(
    seconds: npt.NDArray[np.float64], phase: npt.NDArray[np.int8]
) -> npt.NDArray[np.float64]:
    """Sums over ramp-up, middle and tail."""
    return np.bincount(phase + 1, seconds, minlength=3).astype(np.float64)
