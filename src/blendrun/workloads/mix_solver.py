"""How many requests of each set make a job with the wanted density and sharing.

Solved on the requests that were drawn, not on expectations. Three roles, found by the sets'
figures: the set of lowest density decides the job's density, of the others the one with the most
sharing decides the sharing, and the rest (in equal numbers) fill up. The few requests of lowest
density vary widely in length, so the last one of them is chosen among those drawn beyond it, as
the one that brings the density closest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from blendrun.errors import InputError
from blendrun.units import count_of
from blendrun.workloads.targets import Targets
from blendrun.workloads.totals import Sums, Totals, density_of

_SCAN = 33  # mixes looked at to tell what can be reached
_NEAR = 16  # mixes looked at on either side of the wanted sharing
_FINE = 10_000  # they lie this part of the requests apart


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A mix in numbers; the rest fills up."""

    shared: int  # requests of the set with the most sharing
    low: int  # requests of the set of lowest density
    last: int | None  # place in its pool of the last of those, where it is not the next one
    sums: Sums  # [3]


class MixSolver:
    """Searches counts over `running`: for each set, the sums over its first 0…N requests."""

    def __init__(self, running: Sequence[Sums], targets: Targets) -> None:
        self._running, self._targets = running, targets
        self._density = targets.density or 0.0
        self._num_requests = running[0].shape[1] - 1
        whole = np.stack([sums[:, -1] for sums in running], axis=1)
        sharing = whole[1] / whole[0]
        self.low = int(np.argmin(density_of(whole)))
        sharing[self.low] = -1
        self._shared = int(np.argmax(sharing)) if len(running) > 2 else None
        self._rest = [i for i in range(len(running)) if i not in (self.low, self._shared)]
        self._rest_sums = self._turns(np.arange(self._num_requests + 1))
        self._low_steps = np.diff(running[self.low], axis=1)

    def counts(self, found: Found) -> list[int]:
        """Requests of each set."""
        counts = [0] * len(self._running)
        counts[self.low] = found.low
        if self._shared is not None:
            counts[self._shared] = found.shared
        rest = self._num_requests - found.shared - found.low
        for place, each in enumerate(self._rest):
            counts[each] = int(self._turn(rest, place))
        return counts

    def solve(self) -> Found:
        """The mix that comes closest to the targets."""
        wanted = self._targets.sharing
        if self._shared is None or wanted is None:
            return self._with_density(0)
        fewer, more = 0, self._num_requests  # more requests of that set, more sharing
        while more - fewer > 1:
            middle = (fewer + more) // 2
            if Totals.of(self._with_density(middle).sums).sharing <= wanted:
                fewer = middle
            else:
                more = middle
        # in small jobs the density that can be met changes from one count to the next
        step = 1 + self._num_requests // _FINE
        near = np.unique([more, *(fewer + step * np.arange(-_NEAR, _NEAR + 1))])
        near = near[(near >= 0) & (near <= self._num_requests)]
        mixes = [self._with_density(int(shared)) for shared in near]
        return min(mixes, key=lambda found: self._targets.miss(Totals.of(found.sums)))

    def unreachable(self) -> InputError:
        """Says how far the sets go."""
        last, wanted = self._num_requests, self._targets
        scan = np.linspace(0, last, _SCAN).astype(int) if self._shared is not None else [0]
        near = [Totals.of(self._with_density(int(shared)).sums) for shared in scan]
        sharing = [totals.sharing for totals in near if wanted.density_miss(totals) <= 1]
        if sharing:
            what = f"sharing {wanted.sharing:g} at density {wanted.density:g}"
            reach = f"sharing {min(sharing):.3f} to {max(sharing):.3f} at that density"
        else:
            ends = [self._sums(int(n), low) for n in scan for low in (0, last - int(n))]
            density = density_of(np.stack(ends, axis=1))
            what = f"density {wanted.density:g}"
            reach = f"density {density.min():.3g} to {density.max():.3g}"
        return InputError(
            f"{what} cannot be met with {count_of(last, 'request')} of these sets",
            f"they reach {reach}; a target inside of that needs more requests",
        )

    def _with_density(self, shared: int) -> Found:
        """With `shared` requests of the sharing set, the mix closest to the wanted density."""
        most = self._num_requests - shared
        low, above = 0, most + 1  # more requests of the lowest density, lower density
        while above - low > 1:
            middle = (low + above) // 2
            if density_of(self._sums(shared, middle)) >= self._density:
                low = middle
            else:
                above = middle
        plain = Found(shared, low, None, self._sums(shared, low))
        if low == most:
            return plain
        one_more = self._sums(shared, low, spare=1)[:, None] + self._low_steps[:, low:]
        misses = np.abs(density_of(one_more) - self._density)
        best = int(np.argmin(misses))
        if misses[best] >= abs(density_of(plain.sums) - self._density):
            return plain
        return Found(shared, low + 1, low + best, one_more[:, best])

    def _sums(self, shared: int, low: int, spare: int = 0) -> Sums:
        """Sums of a mix that leaves `spare` requests of the rest out, float64[3]."""
        rest = self._num_requests - shared - low - spare
        sums = self._running[self.low][:, low] + self._rest_sums[:, rest]
        return sums if self._shared is None else sums + self._running[self._shared][:, shared]

    def _turns(self, taken: np.ndarray) -> Sums:
        """Sums over the first `taken` requests of the rest, whose sets take turns."""
        total = np.zeros((3, len(taken)))
        for place, each in enumerate(self._rest):
            total += self._running[each][:, self._turn(taken, place)]
        return total

    def _turn(self, taken: np.ndarray | int, place: int) -> np.ndarray:
        """Of `taken` requests of the rest, those of the set at `place`."""
        return np.asarray((taken + len(self._rest) - 1 - place) // len(self._rest))
