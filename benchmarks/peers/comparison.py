"""Runs in pairs, and the table that they make.

Every setting of a peer runs once; the fastest then takes turns with blendrun, so that what slows
the machine down for a while slows both. Starts nothing itself.
"""

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from peers.contenders import Contender, PeerError, Run
from peers.job import TokenJob

_BEGINNING = 8  # output tokens that are compared: in bf16, engines drift apart later
_HEADINGS = (
    "engine", "version", "settings", "rows", "runs", "seconds", "tokens/s",
    "prompt tokens computed", "same beginnings", "load, s", "blendrun is faster by",
)  # fmt: skip

Open = Callable[[], Contender]  # loads a contender with one setting. Raises PeerError


@dataclass(frozen=True, slots=True)
class Line:
    """An engine with one setting: all its runs, and blendrun's time over its own, by pair."""

    engine: str
    version: str
    settings: str
    load_s: float
    runs: list[Run]
    ratios: list[float] = field(default_factory=list)

    @property
    def generate_s(self) -> float:
        """Median of the runs."""
        return statistics.median(run.generate_s for run in self.runs)

    @property
    def ratio(self) -> float | None:
        """How many times faster blendrun is: median of the pairs; None without pairs."""
        return statistics.median(self.ratios) if self.ratios else None


def compare(own: Contender, tries: Sequence[Open], repeats: int) -> tuple[list[Line], list[Run]]:
    """A line for each setting of one peer, and blendrun's runs of the pairs with the fastest.

    Raises PeerError if no setting runs.
    """
    lines, errors = [], []
    for open_one in tries if len(tries) > 1 else ():
        try:
            lines.append((_once(open_one), open_one))
        except PeerError as error:
            errors.append(str(error))
    if len(tries) > 1 and not lines:
        raise PeerError(errors[0])
    trials = [line for line, _ in lines]
    best = min(trials, key=lambda line: line.generate_s) if trials else None
    chosen = tries[0] if best is None else next(o for line, o in lines if line is best)
    contender = chosen()
    try:
        pairs = [(run_once(own), run_once(contender)) for _ in range(repeats)]
    finally:
        contender.close()
    ratios = [theirs.generate_s / ours.generate_s for ours, theirs in pairs]
    runs = ([] if best is None else best.runs) + [theirs for _, theirs in pairs]
    paired = _line(contender, runs, ratios)
    return [paired if line is best else line for line in trials] or [paired], [o for o, _ in pairs]


def run_once(contender: Contender) -> Run:
    """The job once; says the seconds on stderr, as a whole comparison may take hours."""
    run = contender.run()
    words = f"{contender.name}, {contender.settings}: {run.generate_s:.1f} s"
    print(words, file=sys.stderr, flush=True)
    return run


def same_beginnings(runs: Sequence[Run], reference: Run) -> float | None:
    """Part of the rows whose answers begin with the same tokens as the reference's."""
    answers = runs[-1].answers
    alike = [
        answers[row][:_BEGINNING] == tokens[:_BEGINNING]
        for row, tokens in reference.answers.items()
        if row in answers
    ]
    return sum(alike) / len(alike) if alike else None


def record(line: Line, job: TokenJob, reference: Run | None) -> dict[str, Any]:
    """A line's figures, ready for JSON; keys are the table's columns."""
    total = job.num_prompt_tokens + job.num_output_tokens
    same = None if reference is None else same_beginnings(line.runs, reference)
    values = (
        line.engine, line.version, line.settings, len(job.rows), len(line.runs), line.generate_s,
        total / line.generate_s, line.runs[-1].computed_prompt_tokens, same, line.load_s,
        line.ratio,
    )  # fmt: skip
    return dict(zip(_HEADINGS, values, strict=True))


def markdown(records: Sequence[dict[str, Any]]) -> str:
    """The table for people."""
    rows = [_HEADINGS, ["---"] * len(_HEADINGS)]
    rows += [[_cell(name, record[name]) for name in _HEADINGS] for record in records]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _once(open_one: Open) -> Line:
    contender = open_one()
    try:
        return _line(contender, [run_once(contender)], [])
    finally:
        contender.close()


def _line(contender: Contender, runs: list[Run], ratios: list[float]) -> Line:
    return Line(
        contender.name, contender.version, contender.settings, contender.load_s, runs, ratios
    )


def _cell(name: str, value: object) -> str:
    if value is None:
        return ""
    if name == "same beginnings":
        return f"{value:.0%}"
    if name == "blendrun is faster by":
        return f"{value:.2f}×"
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
