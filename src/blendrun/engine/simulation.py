"""Run a batcher in virtual time: the same decisions as the engine's, priced instead of computed.

The loop is compiled whole, so a hundred thousand requests take seconds. Knows no tokens: an output
ends after the number of tokens it is told.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from blendrun.compiled import compiled, compiled_part
from blendrun.cost.cost_model import CostModel
from blendrun.cost.step_prices import StepPrices
from blendrun.errors import BackendError, CapacityError
from blendrun.schedule.step.decide import OVER, READY, TOO_LARGE, commit, decide, must_refresh
from blendrun.schedule.step.state import State
from blendrun.schedule.step.steering import refreshed
from blendrun.tree.annotate import Float64
from blendrun.tree.prefix_tree import Int32, Int64

_LOG_STEPS, _LOG_CHUNKS = 1 << 16, 1 << 18
_MOST_TOKENS = 8192  # beyond, a step touches all weights and costs as much per token
_PAUSE = -1  # the loop wants new log space or a refresh, or has come to the time it was given

# columns of the step log; COMPUTE is what the size of a step makes of WORK
(START, SECONDS, COMPUTE, MEMORY, PREFILL, DECODE, RUNNING, RUNNING_LEFT, WAITING, FINISHED, PAGES,
 IDLE, PREEMPTED, RECOMPUTED, WORK, HEADS) = range(16)  # fmt: skip
NUM_COLUMNS = 16


class Machine(NamedTuple):
    """Figures that price a step, as plain numbers for compiled code; seconds. See `StepPrices`."""

    token_s: float
    pair_s: float
    head_s: float
    context_s: float
    spared_s: float
    products_s: Float64  # [T] of the layers, in a step over so many tokens, …
    heads_s: Float64  # [T] … and of the output head
    weight_s: Float64  # [T] reading the weights that such a step touches
    floor_exponent: float  # how weight reading combines with compute; inf: the larger counts
    overlap_exponent: float  # 1: compute and memory time add up
    overhead_s: float  # of a step, …
    token_overhead_s: float  # … each of its tokens, …
    output_overhead_s: float  # … and each that it makes
    collective_s: float  # per token of the step, …
    latency_s: float  # … and once
    pace: float  # what every step takes, over that

    @classmethod
    def of(cls, cost: CostModel, overlaps: bool = True, speed: float = 1.0) -> "Machine":
        """`overlaps=False`: an engine that runs its operators one after the other."""
        prices, hardware = StepPrices.of(cost), cost.hardware
        tokens = np.arange(_MOST_TOKENS)
        one, two = float(cost.collective_s(1)), float(cost.collective_s(2))
        return cls(
            token_s=prices.token_s,
            pair_s=prices.pair_s,
            head_s=prices.head_s,
            context_s=prices.context_s,
            spared_s=prices.spared_s,
            products_s=cost.step_products_s(tokens),
            heads_s=cost.step_heads_s(tokens),
            weight_s=cost.step_floor_s(tokens),
            floor_exponent=hardware.weight_floor_exponent,
            overlap_exponent=hardware.overlap_exponent if overlaps else 1.0,
            overhead_s=hardware.step_overhead_s,
            token_overhead_s=hardware.token_overhead_s,
            output_overhead_s=hardware.output_overhead_s,
            collective_s=two - one,
            latency_s=max(2 * one - two, 0.0),
            pace=1.0 / speed,
        )


class Log(NamedTuple):
    steps: Float64  # [_LOG_STEPS, NUM_COLUMNS]
    chunks: Int64  # [_LOG_CHUNKS, 4] step, request, start, end; a preemption is [0, 0)

    @classmethod
    def new(cls) -> "Log":
        return cls(np.zeros((_LOG_STEPS, NUM_COLUMNS)), np.zeros((_LOG_CHUNKS, 4), np.int64))


@dataclass(frozen=True, slots=True)
class Simulated:
    """What happened, in virtual seconds."""

    steps: Float64  # [steps, NUM_COLUMNS]
    chunks: Int64  # [chunks, 4] step, request, start, end; a preemption is [0, 0)
    seconds: float
    state: State


class VirtualRun:
    """A batcher in virtual time, which can pause between steps."""

    def __init__(
        self,
        state: State,
        order: Int32,
        num_outputs: Int32,
        machine: Machine,
        keep_chunks: bool = False,
        begin_s: float = 0.0,
    ) -> None:
        """`state` has begun with `order`; `num_outputs` [N]: tokens after which outputs end."""
        self.state, self.order = state, order
        self._num_outputs, self._machine, self._keep_chunks = num_outputs, machine, keep_chunks
        self._clock = np.full(1, begin_s)
        self._steps: list[Float64] = []
        self._chunks: list[Int64] = []

    @property
    def now_s(self) -> float:
        return float(self._clock[0])

    def wait_until(self, now_s: float) -> None:
        """Nothing happens until then."""
        self._clock[0] = max(self.now_s, now_s)

    def advance(self, log: "Log", until_s: float = np.inf) -> Float64:
        """Run to the end of the step in which `until_s` lies, or until nothing is left to do.

        Args:
            log: space to write on, which other runs may use in turn.

        Returns:
            [steps, NUM_COLUMNS] the steps made.

        Raises:
            CapacityError: the pages do not hold one request.
            BackendError: requests wait and none can go on.
        """
        before = len(self._steps)
        while self.now_s < until_s:
            self.state = refreshed(self.state, self.order)
            status, num_steps, num_chunks = _run(
                self.state, self._num_outputs, self._machine, log, self._clock, until_s
            )
            self._steps.append(log.steps[:num_steps].copy())
            if self._keep_chunks:
                self._chunks.append(log.chunks[:num_chunks].copy())
            if status == OVER:
                break
            if status == TOO_LARGE:
                raise CapacityError(
                    "a request does not fit into KV memory, even alone",
                    "take more ranks (--tp) or hardware with more memory",
                )
            if status != _PAUSE:
                raise BackendError("the simulated run cannot go on: requests wait and none can run")
        return np.concatenate([np.zeros((0, NUM_COLUMNS)), *self._steps[before:]])

    def result(self) -> Simulated:
        """What has happened so far."""
        steps = np.concatenate([np.zeros((0, NUM_COLUMNS)), *self._steps])
        chunks = np.concatenate([np.zeros((0, 4), np.int64), *self._chunks])
        return Simulated(steps, chunks, self.now_s, self.state)


def simulate(
    state: State, order: Int32, num_outputs: Int32, machine: Machine, keep_chunks: bool = False
) -> Simulated:
    """Run a state that has begun to its end.

    Args:
        num_outputs: [N] tokens after which each output ends.

    Raises:
        as `VirtualRun.advance`.
    """
    run = VirtualRun(state, order, num_outputs, machine, keep_chunks)
    run.advance(Log.new())
    return run.result()


@compiled_part
def _norm(a: float, b: float, exponent: float) -> float:
    longer, shorter = max(a, b), min(a, b)
    if exponent == np.inf or longer <= 0:
        return longer
    if exponent == 1:
        return a + b
    return longer * (1 + (shorter / longer) ** exponent) ** (1 / exponent)


@compiled_part
def _at(seconds: Float64, count: int) -> float:
    last = len(seconds) - 1
    return seconds[count] if count <= last else seconds[last] * (count / last)


@compiled
def _run(
    state: State,
    num_outputs: Int32,
    machine: Machine,
    log: Log,
    clock: Float64,
    until_s: float,
) -> tuple[int, int, int]:
    """Steps until the end, the next refresh or a full log: status, logged steps and chunks."""
    columns, slots, counts, step = state.requests, state.slots, state.counts, state.step
    finished = np.zeros(len(slots), np.bool_)
    n, m = 0, 0
    while True:
        if n == len(log.steps) or m + 2 * len(slots) > len(log.chunks):
            return _PAUSE, n, m
        if n > 0 and (clock[0] >= until_s or must_refresh(state)):
            return _PAUSE, n, m
        preemptions, recomputed = counts.preemptions, counts.recomputed
        status = decide(state)
        if status != READY:
            return status, n, m
        for i in range(counts.num_preempts):
            log.chunks[m, 0], log.chunks[m, 1] = counts.step, step.sent_back[i]
            log.chunks[m, 2], log.chunks[m, 3] = 0, 0
            m += 1
        compute_s, heads, prefilled, ended = 0.0, 0, 0, 0
        for i in range(counts.num_batch):
            slot, size = step.slot[i], step.num_tokens[i]
            request, start = slots[slot].request, slots[slot].computed
            end = start + size
            if i >= counts.num_decodes:
                prefilled += size
                compute_s += machine.pair_s * (float(end) * end - float(start) * start)
                log.chunks[m, 0], log.chunks[m, 1] = counts.step, request
                log.chunks[m, 2], log.chunks[m, 3] = start, end
                m += 1
            finished[i] = False
            if end == columns[request].known_len:
                heads += 1
                made = columns[request].known_len - columns[request].prompt_len + 1
                finished[i] = made >= num_outputs[request]
                ended += finished[i]
        tokens = counts.batch_tokens
        work_s = compute_s + machine.token_s * tokens + machine.head_s * heads
        compute_s += _at(machine.products_s, tokens) + _at(machine.heads_s, heads)
        read_s = machine.context_s * (counts.context + counts.num_decodes)
        read_s -= machine.spared_s * counts.spared
        weight_s = machine.weight_s[min(tokens, len(machine.weight_s) - 1)]
        busy_s = _norm(compute_s, weight_s, machine.floor_exponent)
        step_s = _norm(busy_s, read_s, machine.overlap_exponent) + machine.overhead_s
        step_s += machine.token_overhead_s * tokens + machine.output_overhead_s * heads
        step_s += machine.latency_s + machine.collective_s * tokens
        step_s *= machine.pace
        row = log.steps[n]
        row[START], row[SECONDS], row[COMPUTE], row[MEMORY] = clock[0], step_s, busy_s, read_s
        row[WORK], row[HEADS] = work_s, heads
        row[PREFILL], row[DECODE] = prefilled, counts.num_decodes
        row[PAGES], row[IDLE] = state.limits.num_pages - counts.free_pages, counts.idle_pages
        row[RUNNING] = counts.num_running
        row[RUNNING_LEFT] = counts.num_running - counts.num_right
        commit(state, finished)
        row[WAITING], row[FINISHED] = counts.num_waiting, ended
        row[PREEMPTED] = counts.preemptions - preemptions
        row[RECOMPUTED] = counts.recomputed - recomputed
        clock[0] += step_s
        n += 1
