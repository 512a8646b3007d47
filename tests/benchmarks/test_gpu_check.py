"""`make gpu-check` without a GPU: every section in a dry run, and sections that cannot end well."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gpu_check import ceilings, job, numerics, profile, sections
from gpu_check.__main__ import NUM_CASES, best_attention, main
from gpu_check.needs import BLENDRUN, DEVICE
from gpu_check.options import CheckOptions
from gpu_check.results import Findings, read_result
from gpu_check.sections import Section, run_section
from gpu_check.table import lines

from blendrun.cost.hardware import HardwareProfile


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CheckOptions:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return replace(CheckOptions.dry(tmp_path), policies=("blend", "dfs"))


def found_by(check: Any, options: CheckOptions) -> dict[str, Any]:
    path = options.work / "result.json"
    path.unlink(missing_ok=True)
    check.check(options, Findings(path))
    return read_result(path)


def test_a_dry_run_measures_calibrates_and_runs_the_job(options: CheckOptions):
    found = {"ceilings": found_by(ceilings, options), "numerics": found_by(numerics, options)}
    assert found["ceilings"]["copy_bytes_per_s"] > 0
    assert set(found["ceilings"]["gemm_flops"]) == {"qkv", "out", "gate_up", "down", "head"}
    assert found["numerics"]["failed"] == []
    assert {len(by) for by in found["numerics"]["errors"].values()} == {NUM_CASES}

    found["profile"] = found_by(profile, options)
    measured = HardwareProfile.load(str(options.work / profile.FILE))
    assert measured.calibrated
    assert len(measured.split_tokens) == len(options.decodes) * len(options.chunk_tokens)
    assert len(found["profile"]["interference"]) > len(measured.split_tokens)
    assert "measured" in measured.sources["split_tokens"]

    found["job"] = found_by(job, options)
    runs = found["job"]["runs"]
    assert [(run["policy"], run["overlap"], run["schedule"]) for run in runs] == [
        ("blend", "off", "sequential"),
        ("blend", "off", "async"),
        ("blend", "auto", "async"),
        ("blend", "on", "async"),
        ("dfs", "off", "async"),
        ("dfs", "auto", "async"),
    ]
    assert found["job"]["same_when_ahead_frac"] == 1
    assert all(run["tokens_per_s"] > 0 and run["predicted_s"] > 0 for run in runs)
    assert all(run["once_practical_frac"] > 0 for run in runs)
    assert "as measured" in runs[3]["overlap_reason"]

    timed = {name: {"seconds": 1.0, "error": None, **of} for name, of in found.items()}
    text = "\n".join(lines(timed))
    for expected in (
        "products ",
        "of float64",
        "overlap    gain",
        "blend     parts",
        " in turn ",
    ):
        assert expected in text


def test_a_section_is_a_process_and_keeps_what_it_found(options: CheckOptions):
    found = run_section(Section("ceilings", 60, DEVICE), options)
    assert found["error"] is None
    assert found["best_gemm_flops"] > 0


def test_a_section_that_takes_too_long_is_ended(
    options: CheckOptions, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sections, "_DRY_FACTOR", 0.001)
    assert run_section(Section("ceilings", 1, DEVICE), options)["error"] == "ended after 0 s"


def test_what_a_section_found_before_it_failed_is_kept(options: CheckOptions):
    Findings(options.work / "nothing.json").note(half=1)
    found = run_section(Section("nothing", 60, ()), options)
    assert found["half"] == 1
    assert "No module named 'gpu_check.nothing'" in found["error"]


def test_a_section_without_what_it_needs_says_what_is_missing(options: CheckOptions):
    found = run_section(Section("job", 60, ("torch", "no_such_wheel")), options)
    assert found["error"] == "not run, missing: no_such_wheel"


def test_one_command_writes_everything_and_ends_with_the_table(
    options: CheckOptions,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    output = options.work / "out.json"
    found: dict[str, dict[str, Any]] = {"ceilings": {"best_gemm_flops": 5e14}}

    def run(section: Section, _: CheckOptions) -> dict[str, Any]:
        error = "it broke" if section.name == "numerics" else None
        return {"seconds": 1.0, "error": error, **found.get(section.name, {})}

    monkeypatch.setattr("gpu_check.__main__.run_section", run)
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--dry-run", "--output", str(output)])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 1
    printed = capsys.readouterr().out
    assert "500.0 TFLOP/s" in printed
    assert "it broke" in printed
    written = json.loads(output.read_text(encoding="utf-8"))
    assert written["dry_run"] is True
    assert set(written) > {"ceilings", "numerics", "profile", "job"}


def test_the_sections_for_bare_machines_import_torch_and_numpy_only():
    others = sorted(set(BLENDRUN) - {"numpy"})
    program = (
        f"import sys\nfor name in {others!r}: sys.modules[name] = None\n"
        "import gpu_check.__main__, gpu_check.ceilings, gpu_check.numerics\n"
    )
    path = ":".join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_all_sections_together_stay_under_eight_minutes():
    assert sum(section.limit_s for section in sections.SECTIONS) < 8 * 60


def test_options_survive_the_way_to_a_section(tmp_path: Path):
    real = CheckOptions.real(tmp_path)
    assert CheckOptions.from_json(real.to_json()) == real


RIGHT = {str(case): 1e-3 for case in range(NUM_CASES)}


@pytest.mark.parametrize(
    ("errors", "attention"),
    [
        ({}, "auto"),
        ({"triton": RIGHT, "torch": RIGHT, "flashinfer": RIGHT}, "flashinfer"),
        ({"triton": RIGHT, "flashinfer": RIGHT | {"0": 0.3}}, "triton"),
        ({"torch": RIGHT, "flashinfer": RIGHT | {"0": "fails: no nvcc"}}, "torch"),
        ({"triton": RIGHT, "flashinfer": {"0": 1e-3}}, "triton"),  # it took too long
    ],
)
def test_profile_and_job_run_on_kernels_that_are_right(errors: dict[str, Any], attention: str):
    assert best_attention({"errors": errors, "tolerance": 1e-2}) == attention
