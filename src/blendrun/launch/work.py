"""The requests of a job, what they are expected to take, and what each rank has left of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blendrun.cost.cost_model import CostModel
from blendrun.launch.holdings import Holdings
from blendrun.launch.rank_record import Phase, RankRecord
from blendrun.launch.rest import Rest
from blendrun.launch.share import rest_of
from blendrun.tree.prefix_tree import Int32, PrefixTree
from blendrun.tree.strata import top_subtrees


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """N requests as they are expected; all of them by request number."""

    tree: PrefixTree
    output_len: Int32  # [N] planned
    learned: npt.NDArray[np.bool_]  # [N] a rank may learn better
    cost: CostModel


class Forecast:
    """What work is expected to take, as the ranks have learned it by now."""

    def __init__(self, work: Work, ranks: Sequence[RankRecord], held: Holdings) -> None:
        self.tree, self.cost = work.tree, work.cost
        self._work, self._ranks, self._held = work, ranks, held
        self.stratum, strata = top_subtrees(work.tree)
        self._num_strata = len(strata)

    def lengths(self, rank: int | None = None) -> Int32:
        """Output lengths [N], as one rank expects them, or the mean of all."""
        total, known = np.zeros(self._num_strata), np.zeros(self._num_strata)
        for number, record in enumerate(self._ranks):
            if len(record.mean_len) and rank in (None, number):
                total += record.mean_len
                known += record.mean_len > 0
        mean = (total / np.maximum(known, 1))[self.stratum]
        knows = self._work.learned & (known > 0)[self.stratum]
        return np.where(knows, np.maximum(mean, 1), self._work.output_len).astype(np.int32)

    def rest(self, rank: int) -> Rest:
        """What a rank has left to do, at the speed it shows."""
        record = self._ranks[rank]
        rest = record.rest
        if record.phase is Phase.STARTING:
            mine = self._held.unstarted_of(rank)
            rest = rest_of(self.tree, mine, self.lengths(), self.cost)
        return rest.at(record.speed)
