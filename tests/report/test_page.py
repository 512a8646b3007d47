"""The page of a run: whole, small, safe to open, and its pictures account for every second."""

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blendrun.data import disk
from blendrun.report.page import PAGE, report_page, save_page
from blendrun.report.report import make_report
from blendrun.report.spans import spans
from tiny_jobs import execute, plan_job
from tiny_runs import change_steps, job_rows, simulated_again, simulated_run

HOSTILE = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(2)> & \"' \x1b[31m\x07"
ROWS = job_rows(6, 10, 60, 20, (3, 40))


class Tags(HTMLParser):
    """Elements that are open at the end, all tags, and the text."""

    VOID = frozenset({"meta", "br", "img", "use", "path", "image"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulated_run(tmp_path_factory.mktemp("page"), ROWS, dp=2)


def test_the_page_stands_alone_and_is_well_formed(run: Path):
    page = report_page(make_report(run))
    tags = Tags(page)
    assert tags.open == []
    assert not re.search(r"https?://(?!www\.w3\.org)", page)
    for tag, attributes in tags.seen:
        assert tag not in ("script", "link", "iframe", "img")
        assert not [name for name in attributes if name.startswith("on")]
    for svg in re.findall(r"<svg.*?</svg>", page, re.S):
        ET.fromstring(svg)


def test_pictures_have_the_pages_colours_ids_of_their_own_and_a_text(run: Path):
    page = report_page(make_report(run))
    names = ["use", "requests", "tokens", "roofline", "lengths", "ranks"]
    assert re.findall(r'<figure id="(\w+)">', page) == names
    pictures = re.findall(r"<svg.*?</svg>", page, re.S)
    ids = [found for svg in pictures for found in re.findall(r'\sid="([^"]+)"', svg)]
    assert len(ids) == len(set(ids))
    for svg in pictures:
        used = re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', svg)
        assert {a or b for a, b in used} <= set(ids)
        assert 'role="img" aria-label="' in svg
        colours = set(re.findall(r"#[0-9a-f]{6}\b", re.sub(r"<path id.*?/>", "", svg)))
        assert not colours - {"#000000"}, colours
        assert "var(--ink)" in svg or "var(--soft)" in svg


def test_every_part_and_the_finding_are_in_the_page(run: Path):
    report = make_report(run)
    text = Tags(report_page(report)).text
    assert "of the practical optimum" in text
    for part in ("ideal optimum", "= practical optimum", "unexplained", "= wall time"):
        assert part in text


def tick_labels(svg: str) -> list[list[str]]:
    """Of each axis of a picture, in order; the label of the axis is the last."""
    axes = re.split(r'<g id="[\w-]*matplotlib\.axis_\d+">', svg)[1:]
    return [[text.strip() for text in re.findall(r"<!--(.*?)-->", axis, re.S)] for axis in axes]


@pytest.mark.parametrize("output_len", [(3, 4), (1, 40)])
def test_ticks_are_plain_numbers_of_which_none_reads_like_another(
    tmp_path: Path, output_len: tuple[int, int]
):
    rows = job_rows(1, 5, 12, 4, output_len)  # milliseconds, and no request waits
    page = report_page(make_report(simulated_run(tmp_path, rows)))
    pictures = re.findall(r"<svg.*?</svg>", page, re.S)
    labels = [axis for svg in pictures for axis in tick_labels(svg)]
    assert len(labels) >= 2 * len(pictures)
    for axis in labels:
        assert len(set(axis)) == len(axis), axis
        assert not [text for text in axis if "times" in text or "math" in text], axis


def test_no_title_says_that_more_than_all_of_the_time_was_used(run: Path, tmp_path: Path):
    copy = simulated_again(run.parent / "plan.json", tmp_path / "run")
    title = r"<h3>(Compute was .*?)</h3>"
    (before,) = re.findall(title, report_page(make_report(copy)))
    assert before.startswith("Compute was busy ")
    change_steps(copy, step_s=lambda s: s["step_s"] / 2, start_s=lambda s: s["start_s"] / 2)
    (after,) = re.findall(title, report_page(make_report(copy)))
    assert after.startswith("Compute was faster than the hardware profile says: priced at ")


def test_prompts_are_shown_as_text(checkpoint: Path, tmp_path: Path):
    rows = [{"prompt": f"{HOSTILE} {i}", "max_tokens": 2} for i in range(3)]
    plan, _ = plan_job(tmp_path, rows, checkpoint)
    execute(plan, tmp_path / "run")
    page = report_page(make_report(tmp_path / "run"))
    tags = Tags(page)
    assert tags.open == []
    assert "script" not in {tag for tag, _ in tags.seen}
    assert "<script>alert(1)</script>" in tags.text
    assert "\x1b" not in page
    assert "\x07" not in page
    assert "\\x1b[31m" in tags.text


def test_a_page_of_very_many_steps_is_small(run: Path, tmp_path: Path):
    copy = simulated_again(run.parent / "plan.json", tmp_path / "run")
    (path,) = (copy / "steps").iterdir()
    steps = pq.read_table(path)
    pq.write_table(pa.concat_tables([steps] * (300_000 // steps.num_rows)), path)
    change_steps(
        copy,
        start_s=lambda s: np.concatenate([[0.0], np.cumsum(s["step_s"])[:-1]]),
        decode_tokens=lambda s: np.random.default_rng(0).integers(1, 400, len(s["step"])),
    )
    assert len(report_page(make_report(copy))) < 3_000_000


def test_a_run_that_is_not_complete_has_a_page(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from blendrun.engine import torch_backend
    from blendrun.errors import BackendError

    plan, _ = plan_job(tmp_path, [{"prompt": "fox", "max_tokens": 9}], checkpoint)
    real, left = torch_backend.TorchBackend.run, [3]

    def run(backend, batch):
        left[0] -= 1
        if left[0] < 0:
            raise BackendError("planted failure")
        return real(backend, batch)

    monkeypatch.setattr(torch_backend.TorchBackend, "run", run)
    with pytest.raises(BackendError):
        execute(plan, tmp_path / "run")
    text = Tags(report_page(make_report(tmp_path / "run"))).text
    assert "not complete" in text
    assert "not known before the run is complete" in text
    assert "no shared beginning was computed twice" not in text or "other parts" in text


def test_a_run_of_only_bad_rows_has_a_page(checkpoint: Path, tmp_path: Path):
    plan, _ = plan_job(tmp_path, [{"prompt": None}], checkpoint)
    execute(plan, tmp_path / "run")
    path = save_page(make_report(tmp_path / "run"), tmp_path)
    assert path == tmp_path / PAGE
    text = Tags(path.read_text()).text
    assert "Nothing ran: there are error rows only" in text
    assert "0 of 1 rows answered, 1 error row." in text
    assert "Where the time went" not in text  # nor a link to it


def test_two_processes_may_save_a_page_at_the_same_time(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """`run` makes the report when it ends, and so does `report --follow`."""
    report, replace, inner = make_report(run), Path.replace, []

    def replaced(temp: Path, path: Path) -> Path:
        if not inner:  # the other process saves just before this one's page takes its name
            inner.append(path)
            monkeypatch.setattr(disk.os, "getpid", lambda: 1)
            save_page(report, tmp_path)
        return replace(temp, path)

    monkeypatch.setattr(Path, "replace", replaced)
    save_page(report, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [PAGE]
    assert Tags((tmp_path / PAGE).read_text()).open == []


@pytest.mark.parametrize("num_spans", [1, 7, 300])
def test_spans_conserve_what_steps_did(run: Path, num_spans: int):
    explained = make_report(run).explained
    assert explained is not None
    steps = explained.steps
    over = spans(steps, num_spans)
    whole_s = 2 * float(over.middle_s[0]) * num_spans
    assert whole_s == pytest.approx(steps.end_s.max())
    for frac, seconds in ((over.compute_frac, steps.busy_s), (over.read_frac, steps.read_s)):
        assert frac.mean() * whole_s * 2 == pytest.approx(seconds.sum())  # two ranks
    running = steps.running @ steps.step_s
    assert over.running.mean() * whole_s * 2 == pytest.approx(running)


def test_a_gap_between_steps_is_idle_in_its_span(run: Path, tmp_path: Path):
    copy = simulated_again(run.parent / "plan.json", tmp_path / "run")
    end_s = float(make_report(copy).metrics.generate_s)
    change_steps(copy, start_s=lambda s: s["start_s"] + np.where(s["step"] > 5, end_s, 0.0))
    explained = make_report(copy).explained
    assert explained is not None
    over = spans(explained.steps, 100)
    idle = over.running == 0
    assert 40 < idle.sum() < 60
    assert np.isnan(over.decode_per_step[idle]).all()
