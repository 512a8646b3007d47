"""`blendrun simulate`: tables, run folders, the chunk log and the grid of machines."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from blendrun.config import shipped_config
from cli_words import Blendrun
from tiny_jobs import write_rows


@pytest.fixture
def plan(tmp_path: Path, blendrun: Blendrun) -> Path:
    rng = np.random.default_rng(0)
    rows = [
        {
            "token_ids": [*([7] * 50 if i % 2 else [8]), *rng.integers(10, 9000, 40).tolist(), i],
            "max_tokens": 400 if i % 10 == 0 else 8,
            "output_len": 300 if i % 10 == 0 else 4,
        }
        for i in range(120)
    ]
    source = write_rows(tmp_path / "job.jsonl", rows)
    said = blendrun(
        "plan", source, "-o", "plan.json", "--model", "configs/models/llama-3.1-8b.toml",
        "--hardware", "paper-a100", "--cost", "paper", "--token-ids-column", "token_ids",
    )  # fmt: skip
    assert said.code == 0, said.err
    return tmp_path / "plan.json"


def columns(path: Path) -> dict[str, np.ndarray]:
    table = pq.read_table(path)
    return {name: table[name].to_numpy() for name in table.column_names}


def last_line(text: str) -> dict:
    return json.loads(text.strip().splitlines()[-1])


def test_all_policies_in_one_table_and_one_line_of_json(plan: Path, blendrun: Blendrun):
    said = blendrun("simulate", plan, "--policy", "all", "--price-per-gpu-hour", "2")
    assert said.code == 0, said.err
    found = last_line(said.out)
    names = [row["policy"] for row in found["policies"]]
    assert names == ["blend", "blendserve", "dfs", "dfs-sets", "arrival", "random"]
    for row in found["policies"]:
        assert 0 < row["practical_frac"] <= 1
        assert row["price"] == pytest.approx(row["seconds"] / 3600 * 2)
    assert "practical optimum" in said.out


def test_the_engine_is_said_to_be_what_the_hardware_makes_of_it(plan: Path, blendrun: Blendrun):
    said = blendrun("simulate", plan)
    assert "overlapped engine" in said.out
    assert "which this engine does not do" in said.out
    own = Path("cpu-like.toml")
    shipped = shipped_config("hardware", "paper-a100")
    assert shipped is not None
    text = shipped.read_text()
    text = text.replace("overlap_exponent = 4.0", "overlap_exponent = 1.0\noverlap = false")
    own.write_text(text.replace("[sources]", "shared_reads = true\n[sources]"))
    said = blendrun("simulate", plan, "--hardware", own)
    assert said.code == 0, said.err
    assert "sequential engine" in said.out
    assert "which this engine does not do" not in said.out
    found = last_line(said.out)
    assert (found["overlaps"], found["shared_reads"]) == (False, True)
    assert found["policies"][0]["budget"] == "fixed"
    assert found["once_practical_s"] < found["practical_s"]


def test_report_reads_a_simulated_run(plan: Path, tmp_path: Path, blendrun: Blendrun):
    said = blendrun("simulate", plan, "--run-dir", tmp_path / "run")
    assert said.code == 0, said.err
    simulated = last_line(said.out)["policies"][0]
    said = blendrun("report", tmp_path / "run")
    assert said.code == 0, said.err
    report = last_line(said.out)
    assert report["practical_frac"] == pytest.approx(simulated["practical_frac"], rel=1e-6)
    assert report["answered_rows"] == 120
    assert "simulated" in said.out


def test_the_chunk_log_prices_the_run_again(plan: Path, tmp_path: Path, blendrun: Blendrun):
    log = tmp_path / "log"
    said = blendrun("simulate", plan, "--run-dir", tmp_path / "run", "--chunk-log", log)
    assert said.code == 0, said.err
    chunks, requests, nodes = (
        columns(log / f"{n}.parquet") for n in ("chunks", "requests", "nodes")
    )
    assert len(requests["id"]) == 120
    # prompt = own tokens + the end of its node
    end_of = dict(zip(nodes["id"].tolist(), nodes["end"].tolist(), strict=True))
    above = np.array([end_of[node] for node in requests["node"]])
    assert (requests["own"] + above == requests["prompt"]).all()
    # an independent pricing: one token per step from the step after the prefill
    p, c, b = 8_030_261_248, 312e12, 2.039e12
    start, end = chunks["start"].astype(float), chunks["end"].astype(float)
    chunk_s = (2 * p * (end - start) + 4 * 4096 * 32 * (end**2 - start**2)) / c
    prompt = dict(zip(requests["id"].tolist(), requests["prompt"].tolist(), strict=True))
    output = dict(zip(requests["id"].tolist(), requests["output"].tolist(), strict=True))
    steps = 1 + int(max(chunks["step"])) + max(output.values())
    compute, read = np.zeros(steps + 1), np.zeros(steps + 1)
    np.add.at(compute, chunks["step"], chunk_s)
    for step, request, last in zip(chunks["step"], chunks["request"], chunks["end"], strict=True):
        if last == prompt[request]:
            d = output[request]
            compute[step + 1 : step + 1 + d] += 2 * p / c
            read[step + 1 : step + 1 + d] += (last + 1 + np.arange(d)) * 131072 / b
    busy = (compute > 0) | (read > 0)
    g = np.maximum(compute[busy], 2 * p / b)
    seconds = ((g**4 + read[busy] ** 4) ** 0.25).sum()
    assert seconds == pytest.approx(last_line(said.out)["policies"][0]["seconds"], rel=1e-6)


def test_a_grid_of_machines_has_a_front_and_a_picture(
    plan: Path, tmp_path: Path, blendrun: Blendrun
):
    said = blendrun(
        "simulate", plan, "--run-dir", tmp_path, "--what-if",
        "hardware=a100-80gb-sxm,h200,rtx-4090 tp=1,2 dp=1..2",
    )  # fmt: skip
    assert said.code == 0, said.err
    points = last_line(said.out)["points"]
    assert len(points) == 12
    ran = [p for p in points if p["seconds"] is not None]
    for point in ran:
        beaten = [
            q
            for q in ran
            if q["seconds"] <= point["seconds"] and q["price"] <= point["price"] and q is not point
        ]
        assert point["is_best"] == (not beaten)
    picture = (tmp_path / "what-if.svg").read_text()
    assert picture.lstrip().startswith("<?xml")
    assert "h200" in picture


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--policy", "fastest"], "no policy 'fastest'"),
        (["--what-if", "gpu=h200"], "'gpu=h200' is not understood"),
        (["--what-if", "tp=a"], "tp=a is not a list of numbers"),
        (["--what-if", "dp=2..1"], "ranges ascend"),
        (["--price-per-gpu-hour", "much"], "'much' is not a price"),
        (["--hardware", "abacus"], "no hardware profile 'abacus'"),
        (["--lengths", "guess"], "lengths must be one of auto, exact, static, survival"),
        (["--tp", "3"], "cannot be divided among 3 ranks"),
        (["--dp", "0"], "dp must be at least 1"),
        (["--chunk-size", "0"], "chunk_size must be at least 1"),
        (["--price-per-gpu-hour", "h200=3"], "no price for paper-a100"),
    ],
)
def test_what_cannot_be_done_is_said(
    plan: Path, words: list[str], message: str, blendrun: Blendrun
):
    said = blendrun("simulate", plan, *words)
    assert said.code == 2
    assert message in said.err


def test_a_real_run_is_not_overwritten(plan: Path, tmp_path: Path, blendrun: Blendrun):
    run = tmp_path / "run"
    assert blendrun("simulate", plan, "--run-dir", run).code == 0
    assert blendrun("simulate", plan, "--run-dir", run).code == 0  # a simulated one is
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["environment"].pop("simulated")
    (run / "manifest.json").write_text(json.dumps(manifest))
    said = blendrun("simulate", plan, "--run-dir", run)
    assert said.code == 2
    assert "holds a real run" in said.err


def test_ranks_have_chunk_logs_of_their_own(plan: Path, tmp_path: Path, blendrun: Blendrun):
    said = blendrun(
        "simulate",
        plan,
        "--dp",
        "2",
        "--run-dir",
        tmp_path / "run",
        "--chunk-log",
        tmp_path / "log",
    )
    assert said.code == 0, said.err
    ids = [columns(tmp_path / "log" / f"rank-{r}" / "requests.parquet")["id"] for r in range(2)]
    assert sorted(np.concatenate(ids).tolist()) == list(range(120))
    assert last_line(blendrun("report", tmp_path / "run").out)["answered_rows"] == 120


def test_impossible_grids_say_why(plan: Path, blendrun: Blendrun):
    said = blendrun("simulate", plan, "--what-if", "tp=3,5")
    assert said.code == 2
    assert "no machine of the grid can run this job" in said.err
    assert "cannot be divided among 3 ranks" in said.err
    said = blendrun("simulate", plan, "--what-if", "hardware=abacus")
    assert said.code == 2
    assert "no hardware profile 'abacus'" in said.err


def test_a_chunk_log_does_not_replace_other_files(plan: Path, tmp_path: Path, blendrun: Blendrun):
    before = (tmp_path / "plan.data" / "requests.parquet").read_bytes()
    for words in (["--chunk-log", "plan.data"], ["--run-dir", "plan.data"]):
        said = blendrun("simulate", plan, *words)
        assert said.code == 2
        assert "holds something else" in said.err
    assert (tmp_path / "plan.data" / "requests.parquet").read_bytes() == before


def test_guessed_lengths_are_pointed_out(blendrun: Blendrun):
    said = blendrun(
        "plan", "tokens.jsonl", "-o", "guess.json", "--model", "configs/models/llama-3.1-8b.toml",
        "--hardware", "h200",
    )  # fmt: skip
    assert said.code == 0, said.err
    said = blendrun("simulate", "guess.json")
    assert said.code == 0, said.err
    assert "does not say how long 3 outputs will be" in said.out


def test_a_plan_without_requests_is_refused(tmp_path: Path, blendrun: Blendrun):
    write_rows(tmp_path / "bad.jsonl", [{"prompt_token_ids": []}])
    said = blendrun(
        "plan", "bad.jsonl", "-o", "none.json", "--model", "configs/models/llama-3.1-8b.toml",
        "--hardware", "h200",
    )  # fmt: skip
    assert said.code == 0, said.err
    said = blendrun("simulate", "none.json")
    assert said.code == 2
    assert "no requests to simulate" in said.err


def test_a_folder_of_runs_names_them(plan: Path, tmp_path: Path, blendrun: Blendrun):
    assert blendrun("simulate", plan, "--policy", "dfs,random").code == 0
    said = blendrun("report", tmp_path / "plan.sim")
    assert said.code == 2
    assert "plan.sim/dfs" in said.err


def test_less_kv_memory_holds_fewer_requests(plan: Path, tmp_path: Path, blendrun: Blendrun):
    running = []
    for memory in ("60GB", "100MB"):
        said = blendrun("simulate", plan, "--kv-memory", memory, "--run-dir", f"{memory}.sim")
        assert said.code == 0, said.err
        steps = columns(next((tmp_path / f"{memory}.sim").glob("steps/*.parquet")))
        running.append(steps["running"].max())
        capacity = steps["num_pages"][0] * 131072  # bytes of a token, pages of one token
        assert capacity <= 1.001 * float(memory.strip("GMB")) * (1e9 if "G" in memory else 1e6)
    assert running[1] < running[0]


def test_a_simulated_cpu_takes_as_many_requests_as_execute(
    plan: Path, tmp_path: Path, blendrun: Blendrun
):
    said = blendrun("simulate", plan, "--hardware", "cpu", "--kv-memory", "8GB")
    assert said.code == 0, said.err
    manifest = json.loads((tmp_path / "plan.sim" / "manifest.json").read_text())
    assert manifest["environment"]["max_seqs"] == 512
