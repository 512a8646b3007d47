"""What a step costs beside products and attention: a short job, and a fit to its steps."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from blendrun.config import resolve
from blendrun.cost.cost_model import CostModel
from blendrun.data.results import read_steps
from blendrun.engine.attempt import RunEvents
from blendrun.engine.execute import execute_plan
from blendrun.engine.settings import ExecuteSettings
from blendrun.schedule.planner import make_plan
from blendrun.schedule.settings import PlanSettings
from blendrun.tree.annotate import Float64

_OUTPUT_TOKENS, _WALL_S = 48, 15  # of a request; about, of the job
_PROMPT_TOKENS, _MOST_REQUESTS = 160, 96
_FIRST_STEPS = 2  # pages are touched and shapes planned for the first time


@dataclass(frozen=True, slots=True)
class Overheads:
    """Seconds."""

    step_s: float
    token_s: float
    output_s: float  # of a token that is drawn


def measure_overheads(model: str, settings: ExecuteSettings, cost: CostModel) -> Overheads:
    """Run a job of random token ids and fit what its steps take beside products and attention.

    `cost` has the measured rates of products.
    """
    each_s = float(cost.compute_s(_PROMPT_TOKENS, _OUTPUT_TOKENS))
    num_requests = int(np.clip(_WALL_S / each_s, 4, _MOST_REQUESTS))
    rng = np.random.default_rng(0)
    ids = rng.integers(0, cost.shape.vocab_size, (num_requests, _PROMPT_TOKENS), np.int32)
    with TemporaryDirectory() as name:
        folder = Path(name)
        prompts, plan = folder / "prompts.parquet", folder / "plan.json"
        pq.write_table(pa.table({"prompt_token_ids": list(ids)}), prompts)
        flags = {"model": model, "max_tokens": _OUTPUT_TOKENS, "ignore_eos": True}
        plan_settings = resolve(PlanSettings, flags | {"hardware": "cpu"}, {}, "calibrate")
        make_plan([str(prompts)], plan_settings, plan, lambda *_: None)
        nothing = RunEvents(lambda *_: None, lambda _: None, lambda _: None)
        execute_plan(plan, folder / "run", settings, nothing)
        return fit_overheads(read_steps(folder / "run"), cost)


def fit_overheads(steps: pa.Table, cost: CostModel) -> Overheads:
    """Least squares over steps (`STEP_SCHEMA`), none of the three below zero."""
    steps = steps.slice(min(_FIRST_STEPS, steps.num_rows - 1))
    column = {name: steps[name].to_numpy() for name in steps.column_names}
    tokens = column["prefill_tokens"] + column["decode_tokens"]
    outputs = column["output_tokens"]
    rest_s = column["step_s"] - column["attention_s"]
    rest_s = rest_s - cost.step_products_s(tokens) - cost.step_heads_s(outputs)
    causes = np.stack([np.ones(len(tokens)), tokens, outputs], axis=1).astype(np.float64)
    return Overheads(*_fit(causes, rest_s).tolist())


def _fit(causes: Float64, seconds: Float64) -> Float64:
    """Coefficients of `causes` [S, C], leaving out those that would come out below zero."""
    used = np.ones(causes.shape[1], np.bool_)
    found = np.zeros(causes.shape[1])
    while used.any():
        found[:] = 0
        found[used] = np.linalg.lstsq(causes[:, used], seconds, rcond=None)[0]
        if (found >= 0).all():
            break
        used &= found > 0
    return np.maximum(found, 0.0)
