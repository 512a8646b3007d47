"""What takes part in a comparison, and blendrun itself as the command line that users start."""

import importlib.metadata
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from peers.cli import Cli, output_tokens


class PeerError(Exception):
    """A peer cannot run here; the message says why."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the whole job, loading apart."""

    generate_s: float
    answers: dict[int, list[int]]  # output tokens by the job's row
    computed_prompt_tokens: int | None  # None: the engine does not say


class Contender(Protocol):
    """An engine with its settings, ready to run the job again and again."""

    name: str
    version: str
    settings: str
    load_s: float

    def run(self) -> Run:
        """The job once, nothing cached from before. Raises PeerError."""

    def close(self) -> None:
        """Free what it holds."""


@dataclass(slots=True)
class Blendrun:
    """`blendrun execute` on a plan, each time in a new run folder."""

    cli: Cli
    plan: Path
    rows: list[int]  # the job's, to find answers by
    flags: list[str]
    settings: str
    name: str = "blendrun"
    version: str = field(default_factory=lambda: importlib.metadata.version("blendrun"))
    load_s: float = 0.0

    def run(self) -> Run:
        run_dir = self.plan.with_suffix(".run")
        report = self.cli.execute(self.plan, run_dir, "--ignore-eos", *self.flags)
        answers = output_tokens(run_dir)
        shutil.rmtree(run_dir)
        self.load_s = report["load_s"]
        kept = {row: tokens for row in self.rows if (tokens := answers[row]) is not None}
        return Run(report["generate_s"], kept, report["computed_prompt_tokens"])

    def close(self) -> None:
        pass
