"""The same simulated job, had the batcher known how long the outputs are: what not knowing costs.

Only of simulated runs: in a real one, the steps would differ for other reasons, too.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from blendrun.cost.cost_model import CostModel
from blendrun.data.manifest import Attempt, Manifest
from blendrun.engine.simulated_job import SimulatedJob, SimulateOptions
from blendrun.engine.simulated_plan import simulated_job
from blendrun.engine.simulated_run import steps_table
from blendrun.launch.simulated_ranks import simulate_job
from blendrun.report.gap import Gap, Work, explain
from blendrun.report.held_back import Limits, held_back
from blendrun.report.priced_steps import price_steps
from blendrun.schedule.plan_file import read_plan
from blendrun.schedule.plan_record import Plan

MOST_STEPS = 200_000  # replaying more takes longer than a report may
# of a schedule, and so of what it knows
_SHIFTED = ("lost_sharing", "repeated_reads", "imbalance", "few_pages", "small_steps", "ramp_up",
            "tail", "preemption", "fixed_costs", "communication", "rank_imbalance")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Replay:
    """A simulated run that can be had again."""

    job: SimulatedJob
    options: SimulateOptions
    cost: CostModel

    @classmethod
    def of(cls, path: Path, plan: Plan, manifest: Manifest, cost: CostModel) -> "Replay | None":
        """None where nothing would change, or the run cannot be had again."""
        environment = manifest.environment
        replayable = environment.get("simulated") and "length_factor" in environment
        if not replayable or plan.windows:
            return None
        lengths, factor = environment["lengths"], environment["length_factor"]
        job = simulated_job(read_plan(path))
        knows = (lengths == "exact" and factor == 1) or (lengths == "auto" and job.stated.all())
        if knows:
            return None
        tokens = environment["kv_pages"] * environment["page_size"]
        options = SimulateOptions(
            policy=environment["policy"],
            budget=environment["budget"],
            lengths="exact",
            overlaps=environment["overlaps"],
            dp=environment["dp"],
            seed=environment["seed"],
            page_size=environment["page_size"],
            chunk_size=environment["chunk_size"],
            max_seqs=environment["max_seqs"],
            kv_memory=tokens * cost.kv_bytes_per_token,
            keep_sharing=environment["keep_sharing"],
            price_factor=environment["price_factor"],
            rank_speed={int(rank): speed for rank, speed in environment["rank_speed"].items()},
        )
        return cls(job, options, cost)

    def gap(self, work: Work, limits: Limits) -> Gap:
        """Where its time goes with known lengths."""
        outcome = simulate_job(self.job, self.cost, self.options)
        records = steps_table(outcome)
        steps = price_steps(records, self.cost, outcome.overlaps)
        attempts = [Attempt("", 0.0, outcome.seconds, outcome.seconds)]
        held = held_back(steps, limits)
        return explain(steps, work, self.cost, attempts, self.options.dp, held)


def with_known_lengths(gap: Gap, known: Gap) -> Gap:
    """`gap` with what its parts have above those of `known` as one part, if that is a loss."""
    lost_s = sum(gap.seconds[name] - known.seconds[name] for name in _SHIFTED)
    if lost_s <= 0:
        return gap
    shifted = {name: known.seconds[name] for name in _SHIFTED}
    return replace(gap, seconds={**gap.seconds, **shifted, "wrong_lengths": lost_s})
