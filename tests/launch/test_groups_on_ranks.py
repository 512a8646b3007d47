"""Data-parallel ranks that are tensor-parallel groups, all of them processes of their own."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from blendrun.engine.execute import execute_plan
from blendrun.engine.settings import ExecuteSettings
from blendrun.launch.local import LocalLauncher
from blendrun.launch.rank_group import RankGroup
from tiny_jobs import SILENT, execute, plan_job
from tiny_models import make_checkpoint

HEADS = {"hidden_size": 192, "num_attention_heads": 12, "intermediate_size": 100}
TEXT = "question: what is the sum of 12 and 30? answer: the "
ROWS = [
    {"prompt": TEXT + "sum", "max_tokens": 12},
    {"prompt": TEXT + "dog", "max_tokens": 5, "temperature": 1.0, "n": 2},
    {"prompt": "the quick brown", "max_tokens": 20},
    {"prompt": "42", "max_tokens": 9},
]


def answers(run_dir: Path) -> list[Any]:
    names = ["output_token_ids", "output_text", "status"]
    made: list[Any] = pq.read_table(run_dir / "outputs.parquet").select(names).to_pylist()
    return made


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Path, list[Any]]]:
    """By number of KV heads: a plan, and the answers of one process."""
    made = {}
    for num_kv_heads in (1, 3, 4):
        folder = tmp_path_factory.mktemp(f"kv-{num_kv_heads}")
        checkpoint = make_checkpoint(folder / "model", num_key_value_heads=num_kv_heads, **HEADS)
        plan, _ = plan_job(folder, ROWS, checkpoint)
        execute(plan, folder / "alone")
        made[num_kv_heads] = plan, answers(folder / "alone")
    return made


@pytest.mark.parametrize(
    ("num_kv_heads", "tp"),
    [(4, 1), (4, 2), (4, 4), (3, 1), (3, 3), (1, 1), (1, 2), (1, 3), (1, 4)],
)
def test_answers_of_two_groups_are_those_of_one_process(
    jobs: dict[int, tuple[Path, list[Any]]], num_kv_heads: int, tp: int, tmp_path: Path
):
    plan, expected = jobs[num_kv_heads]
    settings = ExecuteSettings(dtype="float32", flush_interval_s=0.0, tp=tp)
    ranks = RankGroup(LocalLauncher(2), 2)
    execute_plan(plan, tmp_path / "run", settings, SILENT, ranks=ranks)
    assert answers(tmp_path / "run") == expected
