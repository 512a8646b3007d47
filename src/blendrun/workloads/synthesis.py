"""Workloads from sets and targets, in one call; and those that the paper measures with."""

from collections.abc import Sequence
from pathlib import Path

from blendrun.cost.cost_model import CostModel
from blendrun.errors import InputError
from blendrun.workloads.assemble import assemble
from blendrun.workloads.mix import solve_mix
from blendrun.workloads.set_spec import default_sets
from blendrun.workloads.sets import LognormalSet, RequestSet, TraceSet
from blendrun.workloads.targets import Targets
from blendrun.workloads.trace_file import TraceFile
from blendrun.workloads.workload import Workload

PAPER_TRACES = ((1.4, 0.35), (0.9, 0.35), (1.4, 0.05), (0.9, 0.05))  # density, sharing; #1 to #4


def synthesize(
    sets: Sequence[RequestSet], num_requests: int, targets: Targets, cost: CostModel, seed: int = 0
) -> Workload:
    """`num_requests` requests of `sets`, mixed so that they meet `targets` under `cost`.

    Raises:
        InputError: targets that do not go with the number of sets or cannot be met, a set that
            cannot be drawn, or a number below its least.
    """
    if num_requests < 1:
        raise InputError(f"a workload needs at least 1 request, not {num_requests}")
    if not sets:
        raise InputError("no set of requests given")
    if seed < 0:
        raise InputError(f"seed must be 0 or above, not {seed}")
    targets.check(len(sets))
    pools = [each.draw(num_requests, seed) for each in sets]
    drawn = solve_mix(pools, targets, cost)
    return assemble([each.name for each in sets], drawn, cost.shape.vocab_size, seed)


def paper_workload(
    density: float, sharing: float, num_requests: int, seed: int, traces: Path, cost: CostModel
) -> Workload:
    """A mix of burst, openvid and mmlu as in the paper's section 6.2; see `PAPER_TRACES`.

    Args:
        density: (1 − s)·T_comp / T_mem, met within 1 %.
        sharing: s, measured on compute, met within 0.005.
        traces: folder with azure_code.parquet and azure_conv.parquet.
        cost: flavour `paper` for the paper's definitions.

    Raises:
        InputError: as `synthesize`.
    """
    return synthesize(default_sets(traces), num_requests, Targets(density, sharing), cost, seed)


def long_output_workload(
    trace: Path, density: float, num_requests: int, seed: int, cost: CostModel
) -> Workload:
    """Requests of one length trace, and openvid as many as bring the mix to `density`.

    The set of the trace is named after its file; sharing is what the system prompts give.

    Raises:
        InputError: as `synthesize`.
    """
    sets = (TraceSet(trace.stem, (TraceFile(trace),)), LognormalSet("openvid"))
    return synthesize(sets, num_requests, Targets(density), cost, seed)
