"""Small jobs: prompts as flat arrays, input files, plans and runs without progress output."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from blendrun.config import resolve
from blendrun.cost.cost_model import CostModel
from blendrun.cost.hardware import HardwareProfile
from blendrun.cost.model_shape import ModelShape
from blendrun.schedule.plan_record import Plan
from blendrun.schedule.planner import make_plan
from blendrun.schedule.settings import PlanSettings
from blendrun.tree.build import build_tree
from blendrun.tree.prefix_tree import PrefixTree

SILENT = SimpleNamespace(  # RunEvents
    begin=lambda _done, _total: None, note=lambda _text: None, step=lambda _advance: None
)
SHAPE = "llama-3.1-8b.toml"  # to plan without a checkpoint


def prompt_lists(min_size: int = 1, max_size: int = 14) -> st.SearchStrategy[list[list[int]]]:
    """Prompts over few tokens, so that prefixes, equal prompts and deep tries are common."""
    prompt = st.lists(st.integers(0, 2), min_size=1, max_size=12)
    return st.lists(prompt, min_size=min_size, max_size=max_size)


def flat(prompts: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens int32 and offsets int64 of prompts."""
    offsets = np.cumsum([0] + [len(p) for p in prompts]).astype(np.int64)
    return np.array([t for p in prompts for t in p], np.int32), offsets


def tree_of(prompts: Sequence[Sequence[int]]) -> PrefixTree:
    return build_tree(*flat(prompts))


def cost_model(hardware: str = "a100-80gb-sxm") -> CostModel:
    return CostModel(ModelShape.load("llama-3.1-8b"), HardwareProfile.load(hardware))


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """A JSONL file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def ignore_progress(stage: str, done: int, total: int) -> None:
    del stage, done, total


def plan_job(
    folder: Path, rows: Iterable[dict[str, Any]], model: str | Path, **settings: Any
) -> tuple[Path, Plan]:
    """Write `rows` to `folder`/rows.jsonl and plan them into `folder`/plan.json."""
    source = write_rows(folder / "rows.jsonl", rows)
    return plan_files(folder / "plan.json", [source], model, **settings)


def plan_files(
    path: Path, sources: Sequence[Path], model: str | Path, **settings: Any
) -> tuple[Path, Plan]:
    wanted = {"model": str(model), "hardware": "a100-80gb-sxm", **settings}
    resolved = resolve(PlanSettings, wanted, {}, "test")
    return path, make_plan([str(s) for s in sources], resolved, path, ignore_progress)


def execute(plan: Path, run_dir: Path, load: Any = None, **settings: Any) -> Any:
    """Execute in float32 unless told otherwise; the RunResult. `load`: a `ModelLoader`."""
    from blendrun.engine.execute import execute_plan
    from blendrun.engine.settings import ExecuteSettings

    wanted = ExecuteSettings(**{"dtype": "float32", "flush_interval_s": 0.0, **settings})
    return execute_plan(plan, run_dir, wanted, SILENT, load=load)
