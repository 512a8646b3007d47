from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def job_of_ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A plan of a model with 8 heads and 4 KV heads, and what one rank on the CPU answers."""
    from engine.test_device_path import ROWS, answers
    from tiny_jobs import plan_job
    from tiny_models import make_checkpoint

    folder = tmp_path_factory.mktemp("job-of-ranks")
    heads = {"hidden_size": 128, "num_attention_heads": 8, "num_key_value_heads": 4}
    plan, _ = plan_job(folder, ROWS, make_checkpoint(folder / "model", **heads), ignore_eos=True)
    return plan, answers(plan, folder / "cpu")
