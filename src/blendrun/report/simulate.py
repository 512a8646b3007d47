"""Simulate a plan under policies, or on a grid of machines, and keep what came out."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from blendrun.cost.cost_model import CostModel
from blendrun.engine.chunk_log import check_log_folder, write_chunk_log
from blendrun.engine.simulated_job import Outcome, SimulatedJob, SimulateOptions
from blendrun.engine.simulated_plan import plan_cost, plan_shape, simulated_job
from blendrun.engine.simulated_run import check_run_folder, write_simulated_run
from blendrun.errors import InputError
from blendrun.launch.simulated_ranks import simulate_job
from blendrun.report.what_if import Point, explore, parse_grid
from blendrun.report.what_if_plot import plot_points
from blendrun.schedule.orders import POLICIES
from blendrun.schedule.plan_file import StoredPlan, read_plan

_PRICE = re.compile(r"(?:(?P<hardware>[^=]+)=)?(?P<price>\d+(?:\.\d*)?|\.\d+)")
_SPEED = re.compile(r"(?P<rank>\d+)=(?P<speed>\d+(?:\.\d*)?|\.\d+)")
PICTURE = "what-if.svg"


class Progress(Protocol):
    def __call__(self, stage: str, done: int, total: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Simulation:
    """A stored plan with what the person chose."""

    stored: StoredPlan
    job: SimulatedJob
    cost: CostModel
    options: SimulateOptions
    prices: Mapping[str, float]  # of a device hour, by hardware; "" for all others

    @classmethod
    def open(
        cls,
        plan: Path,
        options: SimulateOptions,
        hardware: str | None,
        tp: int | None,
        dp: int | None,
        prices: Sequence[str],
        speeds: Mapping[int, float] | None = None,
    ) -> "Simulation":
        """Read the plan; its own machine and ranks stand where nothing else is given.

        `speeds` are of ranks that are slower than the others.

        Raises:
            PlanError: no plan.
            InputError: no such hardware, or a price that is none.
        """
        stored = read_plan(plan)
        cost = plan_cost(stored.plan, hardware, tp)
        seed = stored.plan.settings.get("seed", 0)
        ranks = stored.plan.dp if dp is None else dp
        options = replace(
            options, dp=ranks, seed=options.seed or int(seed), rank_speed=dict(speeds or {})
        )
        made = cls(stored, simulated_job(stored), cost, options, _prices(prices))
        if prices and not set(made.prices) & {"", cost.hardware.name} and len(prices) == 1:
            raise InputError(
                f"no price for {cost.hardware.name}", f"--price-per-gpu-hour {cost.hardware.name}=…"
            )
        return made

    @property
    def num_guessed(self) -> int:
        """Requests whose output length the input does not say: the plan's guess is the truth."""
        return int((~self.job.stated).sum())

    @property
    def hourly(self) -> float | None:
        """Price of a device hour on the chosen machine."""
        return self.prices.get(self.cost.hardware.name, self.prices.get(""))


@dataclass(frozen=True, slots=True)
class PolicyOutcome:
    outcome: Outcome
    run_dir: Path
    price: float | None


def simulate_policies(
    wanted: Simulation,
    policy: str | None,
    run_dir: Path | None,
    chunk_log: Path | None,
    progress: Progress,
) -> list[PolicyOutcome]:
    """Simulate one policy or several; each has a run folder that `report` reads.

    Raises:
        InputError: an unknown policy, or a job or machine that cannot be simulated.
    """
    names = _policies(policy or wanted.stored.plan.policy)
    base = run_dir or wanted.stored.path.with_suffix(".sim")
    for name in names:
        check_run_folder(base if len(names) == 1 else base / name)
    if chunk_log is not None:
        check_log_folder(chunk_log)
    outcomes = []
    for number, name in enumerate(names):
        progress(f"simulate {name}", number, len(names))
        options = replace(wanted.options, policy=name)
        outcome = simulate_job(wanted.job, wanted.cost, options, chunk_log is not None)
        place = base if len(names) == 1 else base / name
        write_simulated_run(place, wanted.stored, wanted.job, outcome)
        if chunk_log is not None:
            log = chunk_log if len(names) == 1 else chunk_log / name
            write_chunk_log(log, outcome, wanted.job)
        price = None
        if wanted.hourly is not None:
            price = outcome.seconds / 3600 * outcome.num_devices * wanted.hourly
        outcomes.append(PolicyOutcome(outcome, place, price))
    return outcomes


def simulate_what_if(
    wanted: Simulation,
    grid: str,
    policy: str | None,
    run_dir: Path | None,
    progress: Progress,
) -> tuple[list[Point], str, Path]:
    """Simulate a grid of machines; the points, the unit of their price and the picture.

    Raises:
        InputError: a grid that is not understood, or more than one policy.
    """
    names = _policies(policy or wanted.stored.plan.policy)
    if len(names) != 1:
        raise InputError("--what-if takes one policy")
    spec = wanted.cost.hardware.name
    where = parse_grid(grid, spec, wanted.cost.tp, wanted.options.dp)
    shape = plan_shape(wanted.stored.plan)
    total = len(where.points)
    points = explore(
        where,
        wanted.job,
        lambda hardware, tp: plan_cost(wanted.stored.plan, hardware, tp, shape),
        replace(wanted.options, policy=names[0]),
        wanted.prices,
        lambda done: progress("simulate machines", done, total),
    )
    unit = "price of the whole job" if wanted.prices else "device hours of the whole job"
    folder = run_dir or wanted.stored.path.with_suffix(".sim")
    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / PICTURE
    about = f"{len(wanted.job.output_len):,} requests to {wanted.cost.shape.name}, {names[0]}"
    plot_points(points, unit, about, picture)
    return points, unit, picture


def rank_speeds(texts: Sequence[str]) -> dict[int, float]:
    """Speeds by rank from texts such as `0=0.5`. Raises InputError."""
    speeds = {}
    for text in texts:
        match = _SPEED.fullmatch(text)
        if match is None:
            raise InputError(f"--rank-speed {text!r} is not a rank and its speed", "such as 0=0.5")
        speeds[int(match["rank"])] = float(match["speed"])
    return speeds


def _policies(text: str) -> list[str]:
    names = list(POLICIES) if text == "all" else list(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in POLICIES:
            raise InputError(f"no policy {name!r}", f"there are: {', '.join(POLICIES)}, all")
    return names


def _prices(texts: Sequence[str]) -> dict[str, float]:
    prices = {}
    for text in texts:
        match = _PRICE.fullmatch(text)
        if match is None:
            raise InputError(
                f"--price-per-gpu-hour {text!r} is not a price", "for instance 2.50 or h200=3.80"
            )
        prices[match["hardware"] or ""] = float(match["price"])
    return prices
