"""Output lengths of one batcher, for others of the same job to learn from, too."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from blendrun.schedule.step.expectations import vouches
from blendrun.schedule.step.state import UNLEARNED, State
from blendrun.tree.prefix_tree import Int32, Int64


@dataclass(frozen=True, slots=True, eq=False)
class Outputs:
    """Counts by stratum and bin of lengths, of M bins that have any.

    Those that run belong to it: without them, the ones that end first, which are the short ones,
    would stand for all.
    """

    place: Int64  # [M] stratum * bins + bin
    ended: Int32  # [M]
    running: Int32  # [M] by their tokens so far

    @classmethod
    def nothing(cls) -> "Outputs":
        none = np.zeros(0, np.int32)
        return cls(none.astype(np.int64), none, none)

    @classmethod
    def of(cls, state: State) -> "Outputs":
        """All that ended or runs here since the run began."""
        lengths, rows = state.lengths, state.requests
        num_bins = lengths.events.shape[1]
        request = state.slots["request"][state.ordered.by_age[: state.counts["num_running"]]]
        age = rows["known_len"][request] - rows["prompt_len"][request]
        learning = (rows["stratum"][request] != UNLEARNED) & (age > 0)
        bins = np.searchsorted(lengths.edge, age[learning], side="right") - 1
        place = rows["stratum"][request][learning] * num_bins + np.minimum(bins, num_bins - 1)
        running = np.bincount(place, minlength=lengths.events.size)
        ended = lengths.events.ravel()
        found = np.flatnonzero((ended > 0) | (running > 0))
        return cls(found, ended[found].astype(np.int32), running[found].astype(np.int32))

    @classmethod
    def total(cls, outputs: "Sequence[Outputs]") -> "Outputs":
        together = np.concatenate([np.zeros(0, np.int64), *(one.place for one in outputs)])
        place, entry = np.unique(together, return_inverse=True)
        ended, running = np.zeros((2, len(place)), np.int32)
        np.add.at(ended, entry, np.concatenate([ended[:0], *(one.ended for one in outputs)]))
        np.add.at(running, entry, np.concatenate([ended[:0], *(one.running for one in outputs)]))
        return cls(place, ended, running)

    def without_running(self) -> "Outputs":
        return Outputs(self.place, self.ended, np.zeros_like(self.running))


def observed(state: State, elsewhere: Outputs) -> None:
    """Learn from all outputs of other batchers, too, from the next refresh on."""
    lengths = state.lengths
    lengths.elsewhere[:] = lengths.running_elsewhere[:] = 0
    lengths.elsewhere.ravel()[elsewhere.place] = elsewhere.ended
    lengths.running_elsewhere.ravel()[elsewhere.place] = elsewhere.running
    ended, running = lengths.elsewhere.sum(axis=1), lengths.running_elsewhere.sum(axis=1)
    lengths.strata["elsewhere"], lengths.strata["told"] = ended, vouches(ended, running)
