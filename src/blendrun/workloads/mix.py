"""The requests of a job that has the wanted density and sharing, taken from the sets' pools."""

from collections.abc import Sequence

from blendrun.cost.cost_model import CostModel
from blendrun.workloads.drawn import Drawn
from blendrun.workloads.mix_solver import MixSolver
from blendrun.workloads.targets import Targets
from blendrun.workloads.totals import Totals, request_sums, running_sums


def solve_mix(pools: Sequence[Drawn], targets: Targets, cost: CostModel) -> tuple[Drawn, ...]:
    """The requests taken of each set, together as many as one pool has.

    Args:
        pools: N requests of each set; each is used from its start.
        targets: none for one set, a density for two, both for three and more.

    Raises:
        InputError: the targets do not go with the number of sets, or cannot be met; the message
            says what can be reached.
    """
    targets.check(len(pools))
    if len(pools) == 1:
        return tuple(pools)
    solver = MixSolver([running_sums(request_sums(pool, cost)) for pool in pools], targets)
    found = solver.solve()
    if targets.miss(Totals.of(found.sums)) > 1:
        raise solver.unreachable()
    counts = solver.counts(found)
    return tuple(
        _take(pool, counts[i], found.last if i == solver.low else None)
        for i, pool in enumerate(pools)
    )


def _take(pool: Drawn, count: int, last: int | None) -> Drawn:
    return (pool if last is None else pool.swapped(count - 1, last)).first(count)
