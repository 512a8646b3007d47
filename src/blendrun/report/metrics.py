"""Sums over a run that add up across attempts and ranks, and the figures that follow from them."""

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from blendrun.data.manifest import Attempt, Manifest
from blendrun.data.results import read_answers, read_steps


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """Sums; `a + b` are those of both. Seconds of several ranks are rank-seconds."""

    attempts: int = 0
    answered_rows: int = 0
    error_rows: int = 0
    prompt_tokens: int = 0  # of answered rows
    cached_tokens: int = 0  # of them, taken from another request's work
    output_tokens: int = 0
    steps: int = 0
    wall_s: float = 0.0  # commands, from start to end
    load_s: float = 0.0
    generate_s: float = 0.0  # from the first step of an attempt to its last, …
    elapsed_s: float = 0.0  # … and on the clock: ranks run at the same time
    step_s: float = 0.0
    model_s: float = 0.0
    attention_s: float = 0.0
    sample_s: float = 0.0
    schedule_s: float = 0.0
    prefill_tokens: int = 0  # prompt and recomputed tokens that went through the model
    decode_tokens: int = 0
    padding_rows: int = 0  # computed beside those tokens, with --deterministic
    preemptions: int = 0
    recomputed_tokens: int = 0
    predicted_compute_s: float = 0.0
    predicted_memory_s: float = 0.0
    running_seconds: float = 0.0  # running requests × seconds
    page_seconds: float = 0.0  # KV pages in use × seconds
    capacity_seconds: float = 0.0  # KV pages × seconds

    def __add__(self, other: "RunMetrics") -> "RunMetrics":
        return RunMetrics(
            *(getattr(self, f.name) + getattr(other, f.name) for f in fields(RunMetrics))
        )

    @property
    def computed_prompt_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens

    @property
    def sharing_frac(self) -> float:
        """Share of the prompt tokens that did not have to be computed."""
        return _ratio(self.cached_tokens, self.prompt_tokens)

    @property
    def input_tokens_per_s(self) -> float:
        return _ratio(self.prompt_tokens, self.elapsed_s)

    @property
    def output_tokens_per_s(self) -> float:
        return _ratio(self.output_tokens, self.elapsed_s)

    @property
    def total_tokens_per_s(self) -> float:
        return self.input_tokens_per_s + self.output_tokens_per_s

    @property
    def padding_frac(self) -> float:
        """Of all rows that the model's layers computed."""
        tokens = self.prefill_tokens + self.decode_tokens
        return _ratio(self.padding_rows, tokens + self.padding_rows)

    @property
    def mean_running(self) -> float:
        """Requests that run at once on a rank, averaged over time."""
        return _ratio(self.running_seconds, self.step_s)

    @property
    def mean_page_use_frac(self) -> float:
        return _ratio(self.page_seconds, self.capacity_seconds)

    @property
    def other_s(self) -> float:
        """Time of generation outside of steps: writing results and progress, waiting for work."""
        return max(self.generate_s - self.step_s, 0.0)

    @property
    def outside_s(self) -> float:
        """Time of generation in which no kernel of the model runs: Python and files.

        What Python does between the kernels of the model counts to `model_s`.
        """
        return self.schedule_s + self.sample_s + self.other_s

    @property
    def outside_frac(self) -> float:
        return _ratio(self.outside_s, self.generate_s)


_OF_ANSWERS = ("status", "num_prompt_tokens", "num_cached_tokens", "num_output_tokens")


def read_metrics(run_dir: Path, manifest: Manifest, records: pa.Table | None = None) -> RunMetrics:
    """Sums over all attempts of a run, finished or not.

    `records` are its step records, if they have been read already.

    Raises:
        PlanError: a part cannot be read.
    """
    total = _of_answers(read_answers(run_dir, _OF_ANSWERS))
    steps = read_steps(run_dir) if records is None else records
    several = len(manifest.attempts) > 1  # a filter copies the records
    for number, attempt in enumerate(manifest.attempts, start=1):
        mine = steps.filter(pc.equal(steps["attempt"], number)) if several else steps
        total += _of_attempt(attempt, mine)
    row_block = manifest.environment.get("row_block")
    if row_block and steps.num_rows:
        tokens = pc.add(steps["prefill_tokens"], steps["decode_tokens"]).to_numpy()
        total += RunMetrics(padding_rows=int((-tokens % row_block).sum()))
    return total


def _of_answers(answers: pa.Table) -> RunMetrics:
    ok = answers.filter(pc.equal(answers["status"], "ok"))
    return RunMetrics(
        answered_rows=ok.num_rows,
        error_rows=answers.num_rows - ok.num_rows,
        prompt_tokens=_sum(ok["num_prompt_tokens"]),
        cached_tokens=_sum(ok["num_cached_tokens"]),
        output_tokens=_sum(ok["num_output_tokens"]),
    )


def _of_attempt(attempt: Attempt, steps: pa.Table) -> RunMetrics:
    if not steps.num_rows:
        return RunMetrics(attempts=1, wall_s=attempt.wall_s or 0.0, load_s=attempt.load_s or 0.0)
    column = {name: steps[name].to_numpy() for name in steps.column_names}
    seconds = column["step_s"]
    elapsed_s = float(np.max(column["start_s"] + seconds))
    ranks = 1  # each waits until the last one ends
    if "rank" in column and not np.isnan(column["rank"]).any():
        ranks = len(np.unique(column["rank"]))
    load_s = attempt.load_s or 0.0
    summed = ("step_s", "model_s", "attention_s", "sample_s", "schedule_s",
              "predicted_compute_s", "predicted_memory_s")  # fmt: skip
    counted = ("prefill_tokens", "decode_tokens", "preemptions", "recomputed_tokens")
    return RunMetrics(
        attempts=1,
        steps=steps.num_rows,
        wall_s=attempt.wall_s or load_s + elapsed_s,  # a killed attempt has no end
        load_s=load_s,
        generate_s=ranks * elapsed_s,
        elapsed_s=elapsed_s,
        running_seconds=float(column["running"] @ seconds),
        page_seconds=float(column["pages_used"] @ seconds),
        capacity_seconds=float(column["num_pages"] @ seconds),
        **{name: column[name].sum().item() for name in (*summed, *counted)},
    )


def _sum(column: pa.ChunkedArray) -> int:
    return int(pc.sum(column).as_py() or 0)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
