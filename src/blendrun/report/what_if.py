"""One job on a grid of machines: time and price of each, and which of them nothing beats."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from blendrun.cost.cost_model import CostModel
from blendrun.cost.hardware import HardwareProfile
from blendrun.engine.simulated_job import SimulatedJob, SimulateOptions
from blendrun.errors import BlendrunError, CapacityError, InputError
from blendrun.launch.simulated_ranks import simulate_job

_KEYS = ("hardware", "tp", "dp")


@dataclass(frozen=True, slots=True)
class Grid:
    """Values to try; every combination is simulated."""

    hardware: tuple[str, ...]
    tp: tuple[int, ...]
    dp: tuple[int, ...]

    @property
    def points(self) -> list[tuple[str, int, int]]:
        return list(product(self.hardware, self.tp, self.dp))


@dataclass(frozen=True, slots=True)
class Point:
    """One machine; without `seconds` it cannot run the job, for the `reason`."""

    hardware: str
    tp: int
    dp: int
    seconds: float | None
    price: float | None  # money, or device hours where no price is known
    practical_frac: float | None
    reason: str = ""
    is_best: bool = False  # nothing is both faster and cheaper

    @property
    def num_devices(self) -> int:
        return self.tp * self.dp


def parse_grid(text: str, hardware: str, tp: int, dp: int) -> Grid:
    """A grid from `hardware=a,b tp=1,2 dp=1..8`; what is not named stays as given.

    Raises:
        InputError: an unknown key or hardware, or a value that is not a number.
    """
    values: dict[str, str] = {}
    for word in text.split():
        key, sign, value = word.partition("=")
        if key not in _KEYS or not sign or not value:
            raise InputError(
                f"--what-if: {word!r} is not understood",
                "for instance: --what-if 'hardware=a100-80gb-sxm,h200 tp=1,2 dp=1..8'",
            )
        values[key] = value
    names = tuple(values.get("hardware", hardware).split(","))
    for name in names:
        HardwareProfile.load(name)  # a name that is not known is an error, not a point
    return Grid(
        names,
        _numbers(values.get("tp", str(tp)), "tp"),
        _numbers(values.get("dp", str(dp)), "dp"),
    )


def explore(
    grid: Grid,
    job: SimulatedJob,
    cost_of: Callable[[str, int], CostModel],
    options: SimulateOptions,
    prices: Mapping[str, float],
    on_point: Callable[[int], None],
) -> list[Point]:
    """Simulate every point of `grid`.

    Args:
        cost_of: prices of a hardware profile with so many tensor-parallel ranks.
        prices: money for a device hour, by hardware; "" stands for all others.
        on_point: told how many points are done.

    Raises:
        CapacityError: no point can run the job.
    """
    points = []
    for done, (hardware, tp, dp) in enumerate(grid.points, start=1):
        try:
            outcome = simulate_job(job, cost_of(hardware, tp), replace(options, dp=dp))
        except BlendrunError as error:
            points.append(Point(hardware, tp, dp, None, None, None, error.message))
        else:
            hours = outcome.seconds / 3600 * tp * dp
            hourly = prices.get(hardware, prices.get("", 1.0))
            points.append(
                Point(hardware, tp, dp, outcome.seconds, hours * hourly, outcome.practical_frac)
            )
        on_point(done)
    if all(point.seconds is None for point in points):
        reasons = dict.fromkeys(point.reason for point in points)
        raise CapacityError("no machine of the grid can run this job", "; ".join(reasons))
    return _with_best(points)


def _with_best(points: Sequence[Point]) -> list[Point]:
    """Mark the points that no other beats in both time and price."""
    ran = [p for p in points if p.seconds is not None and p.price is not None]
    best, cheapest = set(), float("inf")
    for point in sorted(ran, key=lambda p: (p.seconds, p.price)):
        if point.price is not None and point.price < cheapest:
            best.add(id(point))
            cheapest = point.price
    return [replace(p, is_best=id(p) in best) for p in points]


def _numbers(text: str, key: str) -> tuple[int, ...]:
    """Whole numbers above 0 from `1,2,4` or `1..8`."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        try:
            low = int(first)
            high = int(last) if dots else low
        except ValueError:
            raise InputError(f"--what-if: {key}={text} is not a list of numbers") from None
        if not 1 <= low <= high:
            raise InputError(f"--what-if: {key}={text}: numbers are 1 or more, ranges ascend")
        numbers.extend(range(low, high + 1))
    return tuple(dict.fromkeys(numbers))
