"""Work that a rank has left to do, by resource."""

from typing import NamedTuple

from blendrun.cost.cost_model import CostModel


class Rest(NamedTuple):
    """Seconds on the machine that the cost model is of."""

    compute_s: float
    memory_s: float  # KV reads
    least_s: float = 0.0  # no less compute, whatever there is to do: steps read the weights

    def plus(self, other: "Rest") -> "Rest":
        return Rest(self.compute_s + other.compute_s, self.memory_s + other.memory_s, self.least_s)

    def less(self, other: "Rest") -> "Rest":
        return Rest(
            max(self.compute_s - other.compute_s, 0.0),
            max(self.memory_s - other.memory_s, 0.0),
            self.least_s,
        )

    def at(self, speed: float) -> "Rest":
        """On a rank that is `speed` times as fast."""
        return Rest(self.compute_s / speed, self.memory_s / speed, self.least_s / speed)

    def seconds(self, cost: CostModel) -> float:
        """Until it is done, with compute and KV reads perfectly mixed."""
        return float(cost.overlapped_s(max(self.compute_s, self.least_s), self.memory_s))


NOTHING = Rest(0.0, 0.0)
