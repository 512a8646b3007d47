"""From a run's files to the gap and what the sentences about it speak of."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from blendrun.cost.cost_model import CostModel
from blendrun.cost.optimum import Optimum
from blendrun.data.manifest import Attempt, Manifest
from blendrun.data.results import read_answers
from blendrun.report.bounds import run_cost
from blendrun.report.gap import Work, explain
from blendrun.report.held_back import Held, Limits, held_back
from blendrun.report.metrics import RunMetrics
from blendrun.report.priced_steps import PricedSteps, price_steps
from blendrun.report.rank_pace import RankPace
from blendrun.report.remedies import Facts, sentence
from blendrun.report.replay import MOST_STEPS, Replay, with_known_lengths
from blendrun.schedule.plan_record import Plan
from blendrun.tree.prefix_tree import Int64


@dataclass(frozen=True, slots=True)
class Explained:
    steps: PricedSteps
    facts: Facts

    def sentence(self, part: str) -> str:
        """Why `part` is there, with a remedy where there is one."""
        return sentence(part, self.facts)

    def table(self) -> pa.Table:
        """The steps as they were priced, with the phase and the loss of each."""
        gap = self.facts.gap
        table = self.steps.table().append_column("phase", pa.array(gap.phase))
        return table.append_column("loss_s", pa.array(gap.loss_s))


def explain_run(
    run_dir: Path,
    path: Path,
    manifest: Manifest,
    plan: Plan,
    records: pa.Table,
    metrics: RunMetrics,
    optimum: Optimum | None,
) -> Explained | None:
    """Explain the run of the plan at `path`; None where nothing ran yet."""
    environment = manifest.environment
    if not records.num_rows or "hardware" not in environment:
        return None
    cost, simulated = run_cost(manifest), bool(environment.get("simulated"))
    # the real engine of this version runs its operators in order
    overlaps = bool(environment.get("overlaps", False)) and cost.hardware.overlaps
    as_attempts = simulated and "rank" not in records.column_names
    steps = price_steps(records, cost, overlaps, as_attempts, environment.get("row_block"))
    attempts = _one_attempt(manifest.attempts) if as_attempts else manifest.attempts
    ranks = max(environment.get("dp", 1), *(lane.rank + 1 for lane in steps.lanes))
    work = least_work(optimum, cost, plan) if optimum else None
    prompt_len, output_len = _lengths(run_dir)
    limits = Limits.of(environment, prompt_len, output_len)
    held = held_back(steps, limits)
    gap = explain(steps, work, cost, attempts, ranks, held)
    replay = None
    if work and records.num_rows <= MOST_STEPS:
        replay = Replay.of(path, plan, manifest, cost)
    if work and replay:
        gap = with_known_lengths(gap, replay.gap(work, limits))
    in_tail = gap.phase > 0
    fixed_s = max(float(steps.fixed_s.sum() - steps.outside_s.sum()), 0.0)  # as in the gap
    seconds = float(steps.step_s[in_tail].sum())
    facts = Facts(
        gap=gap,
        metrics=metrics,
        cost=cost,
        work=work,
        policy=str(environment.get("policy", plan.policy)),
        overlaps=overlaps,
        longest_output=int(output_len.max(initial=0)),
        tail_running=float(np.dot(steps.running[in_tail], steps.step_s[in_tail])) / (seconds or 1),
        num_ranks=ranks,
        priced_model_s=float(steps.run_s.sum() + steps.collective_s.sum() + fixed_s),
        priced_attention_s=float(steps.read_s.sum() + steps.prefill_attention_s.sum()),
        was_replayed=replay is not None,
        most_pages_frac=float((steps.pages_used / np.maximum(steps.num_pages, 1)).max()),
        between_steps_s=_between_s(steps) / ranks,
        compile_s=sum(attempt.compile_s or 0.0 for attempt in attempts),
        small_held=_most_held(steps, held),
        pace=RankPace.of(steps),
    )
    return Explained(steps, facts)


def least_work(optimum: Optimum, cost: CostModel, plan: Plan) -> Work:
    """What no run on this backend can do without; see `spared_frac` for its KV reads."""
    spared_s = cost.spared_frac * (optimum.memory_s - optimum.once_memory_s)
    return Work(
        compute_s=optimum.shared_compute_s,
        memory_s=optimum.memory_s - spared_s,
        min_steps=optimum.min_steps,
        unique_tokens=plan.counts.unique_prompt_tokens,
    )


def _lengths(run_dir: Path) -> tuple[Int64, Int64]:
    """Tokens of the prompt and the output of every answer."""
    names = ("num_prompt_tokens", "num_output_tokens")
    answers = read_answers(run_dir, names)
    answers = answers.filter(pc.equal(answers["status"], "ok"))
    prompt_len, output_len = (answers[name].to_numpy().astype(np.int64) for name in names)
    return prompt_len, output_len


def _between_s(steps: PricedSteps) -> float:
    """Rank-seconds between the first step of each lane and its last in which none ran."""
    spans = (steps.end_s[of.steps].max() - steps.start_s[of.steps].min() for of in steps.lanes)
    return float(sum(spans) - steps.step_s.sum())


def _most_held(steps: PricedSteps, held: npt.NDArray[np.int8]) -> Held:
    """What held back most of the compute that small steps cost, but for pages."""
    over_s = np.bincount(held, np.maximum(steps.busy_s - steps.work_s, 0.0), minlength=len(Held))
    over_s[Held.PAGES] = 0.0
    return Held(int(np.argmax(over_s)))


def _one_attempt(ranks: tuple[Attempt, ...]) -> tuple[Attempt, ...]:
    """Ranks that ran at the same time and are listed as attempts."""
    return (max(ranks, key=lambda attempt: attempt.wall_s or 0.0),)
