"""What a step costs beside products and attention: a short job, and a fit to its steps.

Requests of the job differ in length, so that steps differ in tokens and in outputs: only then can
a cost of each step, of each token and of each output be told apart. Steps are as large as those of
real jobs. In small ones a fixed cost of the step weighs so much that a little of it, put onto
tokens or outputs, is a lot in a job with many of them in a step.
"""

from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from blendrun.config import from_table, resolve
from blendrun.cost.cost_model import CostModel
from blendrun.cost.hardware import HardwareProfile
from blendrun.data.manifest import read_manifest
from blendrun.data.results import read_steps
from blendrun.engine.attempt import ModelLoader, RunEvents
from blendrun.engine.execute import execute_plan
from blendrun.engine.settings import ExecuteSettings
from blendrun.schedule.planner import make_plan
from blendrun.schedule.settings import PlanSettings
from blendrun.tree.annotate import Float64

_OUTPUT_TOKENS, _WALL_S = (8, 200), 35  # of a request; about, of the job
_PROMPT_TOKENS, _MOST_REQUESTS = (32, 288), 192
_FIRST_STEPS = 2  # pages are touched and shapes planned for the first time
_FAR_OFF = 6.0  # medians of what steps are off the fit
_LEAST_T = 2.0  # standard errors that a cost must be above 0 to count as told apart
CAUSES = ("step_overhead_s", "token_overhead_s", "output_overhead_s")


@dataclass(frozen=True, slots=True)
class Overheads:
    """Seconds."""

    step_s: float
    token_s: float
    output_s: float  # of a token that is drawn
    unclear: tuple[str, ...] = ()  # those of CAUSES that the steps do not tell from 0


def measure_overheads(
    model: str, settings: ExecuteSettings, cost: CostModel, load: ModelLoader | None = None
) -> Overheads:
    """Run a job of random token ids and fit what its steps take beside products and attention.

    `cost` has the measured rates of products; `load` gives the model.
    """
    each_s = float(cost.compute_s(np.mean(_PROMPT_TOKENS), np.mean(_OUTPUT_TOKENS)))
    num_requests = int(np.clip(_WALL_S / each_s, 4, _MOST_REQUESTS))
    rng = np.random.default_rng(0)
    prompt_len = rng.integers(*_PROMPT_TOKENS, num_requests)
    ids = [rng.integers(0, cost.shape.vocab_size, n, np.int32) for n in prompt_len]
    output_len = rng.integers(*_OUTPUT_TOKENS, num_requests)
    with TemporaryDirectory() as name:
        folder = Path(name)
        prompts, plan = folder / "prompts.parquet", folder / "plan.json"
        pq.write_table(pa.table({"prompt_token_ids": ids, "max_tokens": output_len}), prompts)
        flags = {"model": model, "ignore_eos": True}
        plan_settings = resolve(PlanSettings, flags | {"hardware": "cpu"}, {}, "calibrate")
        make_plan([str(prompts)], plan_settings, plan, lambda *_: None)
        nothing = RunEvents(lambda *_: None, lambda _: None, lambda _: None)
        run_dir = folder / "run"
        execute_plan(plan, run_dir, settings, nothing, load=load)
        return _of_run(run_dir, cost)


def _of_run(run_dir: Path, cost: CostModel) -> Overheads:
    """The costs of the steps of a run; what is done between steps counts to outputs."""
    steps, manifest = read_steps(run_dir), read_manifest(run_dir)
    if manifest is None or not steps.num_rows:
        return Overheads(0.0, 0.0, 0.0, CAUSES)
    table = manifest.environment["hardware"]
    assumed = from_table(HardwareProfile, table, "manifest: hardware")
    factor = assumed.effective_bandwidth / cost.hardware.effective_bandwidth
    read_s = steps["predicted_memory_s"].to_numpy() * factor
    found = fit_overheads(steps, read_s, cost)
    num_outputs = max(pc.sum(steps["output_tokens"]).as_py(), 1)
    return replace(found, output_s=found.output_s + _between_s(steps) / num_outputs)


def _between_s(steps: pa.Table) -> float:
    start_s, step_s = (steps[name].to_numpy() for name in ("start_s", "step_s"))
    return max(float(start_s[-1] + step_s[-1] - start_s[0] - step_s.sum()), 0.0)


def fit_overheads(steps: pa.Table, read_s: Float64, cost: CostModel) -> Overheads:
    """Least squares over steps, none of the three costs below zero, twice: without what is far off.

    Args:
        steps: `STEP_SCHEMA`.
        read_s: [steps] KV reads at the rate of `cost`.
    """
    first = min(_FIRST_STEPS, steps.num_rows - 1)
    column = {name: steps[name].to_numpy()[first:] for name in steps.column_names}
    prefill, outputs = column["prefill_tokens"], column["output_tokens"]
    tokens = prefill + column["decode_tokens"]
    rest_s = column["step_s"] - read_s[first:]
    rest_s = rest_s - cost.step_products_s(tokens) - cost.step_heads_s(outputs)
    # attention within prompts: about that of one of the usual length at a time
    typical = np.mean(_PROMPT_TOKENS)
    products_s = 2 * cost.shape.body_params * typical / cost.hardware.effective_flops
    rest_s -= prefill / typical * (float(cost.prefill_s(0, typical)) - products_s)
    causes = np.stack([np.ones(len(tokens)), tokens, outputs], axis=1).astype(np.float64)
    found, _ = least_squares(causes, rest_s)
    off = np.abs(rest_s - causes @ found)
    usual = off <= _FAR_OFF * np.median(off)  # the others were disturbed
    found, error = least_squares(causes[usual], rest_s[usual])
    unclear = tuple(
        name for name, value, of in zip(CAUSES, found, error, strict=True) if value < _LEAST_T * of
    )
    step_s, token_s, output_s = found.tolist()
    return Overheads(step_s, token_s, output_s, unclear)


def least_squares(causes: Float64, effects: Float64) -> tuple[Float64, Float64]:
    """Coefficients of `causes` [S, C], none below zero, and their standard errors.

    Exact for few causes: of the fits to every subset that give no negative coefficient, the one
    with the least error. A cause that is left out has coefficient 0, and the standard error that
    it has beside all the others; infinity where it cannot be told from them.
    """
    num_causes = causes.shape[1]
    best, least = np.zeros(num_causes), float(effects @ effects)
    for size in range(1, num_causes + 1):
        for used in map(list, combinations(range(num_causes), size)):
            found = np.linalg.lstsq(causes[:, used], effects, rcond=None)[0]
            rest = effects - causes[:, used] @ found
            if (found >= 0).all() and rest @ rest < least:
                best, least = np.zeros(num_causes), float(rest @ rest)
                best[used] = found
    error = np.full(num_causes, np.inf)
    if len(effects) > num_causes and np.linalg.matrix_rank(causes) == num_causes:
        variance = least / (len(effects) - num_causes)
        error = np.sqrt(variance * np.diag(np.linalg.inv(causes.T @ causes)))
    return best, error
