"""A run's report as one self-contained HTML page, for a colleague."""

import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from blendrun.data.disk import atomic_file
from blendrun.report import pictures
from blendrun.report.gap import BOUND, PARTS, UNEXPLAINED, Gap
from blendrun.report.picture import Picture
from blendrun.report.remedies import OPTIMUM, SMALL_FRAC, TITLES
from blendrun.report.report import Report
from blendrun.report.requests_seen import RequestsSeen, requests_seen
from blendrun.report.spans import spans
from blendrun.schedule.run_plan import plan_of_run
from blendrun.units import count_of, format_count, format_seconds

PAGE = "report.html"


def save_page(report: Report, folder: Path) -> Path:
    """Write the page into `folder`."""
    path = folder / PAGE
    with atomic_file(path, several_writers=True) as file:
        file.write(report_page(report).encode())
    return path


def report_page(report: Report) -> str:
    """The text of the page."""
    folder = files("blendrun.report")
    seen = None
    if report.optimum and not report.plan.windows:
        _, path, _ = plan_of_run(report.run_dir)
        seen = requests_seen(path, report.run_dir)
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template.filters |= {
        "seconds": _seconds,
        "count": format_count,
        "count_of": count_of,
        "typeset": _typeset,
    }
    environment = report.manifest.environment
    return template.from_string(folder.joinpath("page.html").read_text()).render(
        css=folder.joinpath("page.css").read_text(),
        report=report,
        m=report.metrics,
        plan=report.plan,
        finding=report.finding,
        advice=report.advice,
        hardware=environment.get("hardware", {}).get("name", report.plan.hardware),
        policy=environment.get("policy", report.plan.policy),
        simulated=bool(environment.get("simulated")),
        rows=_gap_rows(report),
        pictures=_pictures(report, seen),
        seen=seen,
        values=report.values(),
    )


def _gap_rows(report: Report) -> list[dict[str, Any]]:
    """Parts as bars, each of which begins where the one before it ends."""
    explained = report.explained
    if explained is None or explained.facts.gap.wall_s <= 0:
        return []
    gap, rows, at_s = explained.facts.gap, [], 0.0
    always = (*BOUND, UNEXPLAINED)
    scale_s = max(gap.wall_s, _most(gap))
    for part in PARTS:
        seconds = gap.seconds[part]
        rows.append(
            {
                "title": TITLES[part],
                "kind": "bound" if part in BOUND else part if part == UNEXPLAINED else "loss",
                "seconds": seconds,
                "frac": seconds / gap.wall_s,
                "left": max(min(at_s, at_s + seconds), 0.0) / scale_s,
                "width": abs(seconds) / scale_s,
                "sentence": explained.sentence(part),
                "is_small": abs(seconds) < SMALL_FRAC * gap.wall_s and part not in always,
                "is_largest": part == gap.largest,
            }
        )
        at_s += seconds
        if part == BOUND[-1]:
            rows.append(
                {
                    "title": "= practical optimum", "kind": "total", "seconds": at_s,
                    "frac": at_s / gap.wall_s, "left": 0.0, "width": max(at_s, 0.0) / scale_s,
                    "sentence": OPTIMUM,
                    "is_small": False, "is_largest": False,
                }
            )  # fmt: skip
    return rows


def _most(gap: Gap) -> float:
    """The furthest that a bar reaches; parts below 0 lead back."""
    at_s = most_s = 0.0
    for seconds in gap.seconds.values():
        at_s += seconds
        most_s = max(most_s, at_s)
    return most_s


def _pictures(report: Report, seen: RequestsSeen | None) -> list[Picture]:
    explained = report.explained
    if explained is None:
        return []
    steps, facts = explained.steps, explained.facts
    over = spans(steps)
    made = [
        pictures.use_over_time(over, facts),
        pictures.requests_over_time(over, steps),
        pictures.tokens_over_time(over, facts),
        pictures.roofline(steps, facts),
    ]
    if seen is not None and len(seen.true_output):
        made.append(pictures.output_lengths(seen.expected_output, seen.true_output))
    if len(steps.lanes) > 1:
        made.append(pictures.rank_chart(steps, facts.gap))
    return made


def _seconds(seconds: float) -> str:
    return _typeset(format_seconds(seconds).replace("-", "−"))


def _typeset(text: str) -> str:
    """No line breaks between a number and its unit."""
    return re.sub(r"(?<=\d) (?=(?:s|min|h|days)\b)", "\N{NO-BREAK SPACE}", text)
