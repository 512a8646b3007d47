"""Plans of small jobs, opened to be looked at."""

from pathlib import Path
from typing import Any

from blendrun.report.tree_view import TreeView
from tiny_jobs import SHAPE, plan_job

GROUPED = [
    {
        "prompt_token_ids": [5, *[10 + subject] * 30, i % 4, 100 + i],
        "max_tokens": 600 if i % 5 else 40,
        **({"output_len": 20} if i % 3 else {}),
    }
    for subject in range(4)
    for i in range(12 + 4 * subject)
]
LOOSE = [{"prompt_token_ids": [200 + i] * 9, "max_tokens": 900} for i in range(6)]
ROWS = [*GROUPED, *LOOSE]  # four groups behind one token, and six prompts apart


def view_of(
    folder: Path, rows: list[dict[str, Any]], model: str | Path = SHAPE, **settings: Any
) -> TreeView:
    path, _ = plan_job(folder, rows, model, **settings)
    return TreeView.open(path)
