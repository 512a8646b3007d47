"""What a mix of sets is to reach, and how near it must come."""

import math
from dataclasses import dataclass

from blendrun.errors import InputError
from blendrun.units import count_of
from blendrun.workloads.totals import Totals

DENSITY_TOLERANCE = 0.01  # of the target
SHARING_TOLERANCE = 0.005


@dataclass(frozen=True, slots=True)
class Targets:
    """Density and sharing of a job, each None where it is as the sets have it.

    Raises:
        InputError: a value that no job can have.
    """

    density: float | None = None  # (1 − s)·T_comp / T_mem
    sharing: float | None = None  # s, measured on compute

    def __post_init__(self) -> None:
        if self.density is not None and not 0 < self.density < math.inf:
            raise InputError(f"density must be above 0, not {self.density:g}")
        if self.sharing is not None and not 0 <= self.sharing < 1:
            raise InputError(
                f"sharing must be at least 0 and below 1, not {self.sharing:g}",
                "it is a share of the compute: 0.35 is 35 %",
            )

    def check(self, num_sets: int) -> None:
        """Asks for as many targets as `num_sets` sets can be mixed for.

        Raises:
            InputError: too many, or too few.
        """
        wanted = ("density", "sharing")[: min(num_sets, 3) - 1]
        rule = (
            "one set is taken as it is: leave both out",
            "two sets can be mixed for a density",
            "three sets and more are mixed for a density and a sharing",
        )[len(wanted)]
        for name in ("density", "sharing"):
            given = getattr(self, name) is not None
            if given and name not in wanted:
                raise InputError(f"no {name} can be chosen for {count_of(num_sets, 'set')}", rule)
            if not given and name in wanted:
                raise InputError(f"which {name}? --{name} is missing", rule)

    def density_miss(self, totals: Totals) -> float:
        """Distance from the wanted density in tolerances: up to 1 is met."""
        if self.density is None:
            return 0.0
        return abs(totals.density / self.density - 1) / DENSITY_TOLERANCE

    def sharing_miss(self, totals: Totals) -> float:
        """Distance from the wanted sharing in tolerances: up to 1 is met."""
        if self.sharing is None:
            return 0.0
        return abs(totals.sharing - self.sharing) / SHARING_TOLERANCE

    def miss(self, totals: Totals) -> float:
        """The larger of both."""
        return max(self.density_miss(totals), self.sharing_miss(totals))
