"""The installed `blendrun`, started as a user would, and what it leaves on disk.

Knows commands and files; nothing of the program's inside is called.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

OK, ERROR_ROWS = 0, 3  # exit codes of a run that came to its end


@dataclass(frozen=True, slots=True)
class Cli:
    """`blendrun` of a Python environment, on `threads` threads (None: its own choice)."""

    threads: int | None = None
    python: Path = Path(sys.executable)
    environment: dict[str, str] = field(default_factory=dict)  # besides what is set already

    @property
    def program(self) -> Path:
        return self.python.with_name("blendrun")

    def plan(self, prompts: list[str], model: str, plan: Path, *flags: str) -> Path:
        """Write `plan`, and return it."""
        plan.parent.mkdir(parents=True, exist_ok=True)
        self.run("plan", *prompts, "--model", model, "--hardware", "cpu", "-o", str(plan), *flags)
        return plan

    def execute(self, plan: Path, run_dir: Path, *flags: str) -> dict[str, Any]:
        """Execute, report, and return the figures of report.json."""
        self.run("execute", str(plan), "--run-dir", str(run_dir), *flags)
        self.run("report", str(run_dir))
        report: dict[str, Any] = json.loads((run_dir / "report" / "report.json").read_text())
        return report

    def run(self, *args: str) -> None:
        """Run a command to its end. Raises SystemExit with what it said if it failed."""
        done = subprocess.run(
            self._command(args), env=self._env(), capture_output=True, text=True, check=False
        )
        if done.returncode not in (OK, ERROR_ROWS):
            raise SystemExit(
                f"blendrun {' '.join(args)}\nended with {done.returncode}:\n"
                f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
            )

    def start(self, *args: str) -> subprocess.Popen[bytes]:
        """Start a command and leave it running; what it prints is dropped."""
        return subprocess.Popen(
            self._command(args),
            env=self._env(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _command(self, args: tuple[str, ...]) -> list[str]:
        if not self.program.is_file():
            raise SystemExit(f"blendrun is not installed beside {self.python}: make setup")
        return [str(self.program), *args]

    def _env(self) -> dict[str, str]:
        threads = {} if self.threads is None else {"OMP_NUM_THREADS": str(self.threads)}
        return {**os.environ, **self.environment, **threads}


def output_tokens(run_dir: Path) -> dict[int, list[int] | None]:
    """Output token ids by input row; None for an error row."""
    table = pq.read_table(run_dir / "outputs.parquet", columns=["status", "output_token_ids"])
    columns = zip(table["status"].to_pylist(), table["output_token_ids"].to_pylist(), strict=True)
    return {i: tokens if status == "ok" else None for i, (status, tokens) in enumerate(columns)}


def unique_prompt_tokens(plan: Path) -> int:
    """Prompt tokens that must be computed at least, by the plan."""
    return int(json.loads(plan.read_text())["counts"]["unique_prompt_tokens"])
