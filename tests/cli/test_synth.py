"""`blendrun synth`, and `plan` on what it wrote."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cli_words import Blendrun, Said
from tiny_jobs import SHAPE
from tiny_workloads import write_azure_traces, write_trace

MACHINE = ["--model", SHAPE, "--hardware", "a100-80gb-sxm", "--cost", "paper"]
TARGETS = ["--density", 1.4, "--sharing", 0.35]


@pytest.fixture
def synth(blendrun: Blendrun, tmp_path: Path) -> Blendrun:
    """`blendrun synth OUT …` in a folder with the traces of the default sets."""
    write_azure_traces(tmp_path / "traces")

    def run(output: str, *words: object) -> Said:
        return blendrun("synth", output, *MACHINE, *words)

    return run


def default(synth: Blendrun, output: str = "out.parquet", *words: object) -> Said:
    return synth(output, "--requests", 1000, *TARGETS, "--traces", "traces", *words)


def test_it_tells_what_it_made_last_in_json(synth: Blendrun, tmp_path: Path):
    said = default(synth)
    assert (said.code, said.err) == (0, "")
    assert "llama-3.1-8b on a100-80gb-sxm, cost paper" in said.out
    for part in ("burst", "openvid", "mmlu", "wanted 1.4", "wanted 35.0%", "prompts: out.parquet"):
        assert part in said.out
    figures = json.loads(said.out.splitlines()[-1])
    assert figures["density"] == pytest.approx(1.4, rel=0.01)
    assert figures["sharing"] == pytest.approx(0.35, abs=0.005)
    assert [each["name"] for each in figures["sets"]] == ["burst", "openvid", "mmlu"]
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.num_rows == figures["requests"] == 1000
    lengths = table["true_output_len"].to_numpy()
    assert lengths.sum() == figures["output_tokens"]
    assert (lengths <= table["max_tokens"].to_numpy()).all()


def plan_of(blendrun: Blendrun, prompts: str, *words: object) -> dict:
    said = blendrun("plan", prompts, "-o", "plan.json", *MACHINE, *words)
    assert said.code == 0
    return json.loads(Path("plan.json").read_text())


def test_plan_knows_the_true_lengths_only_where_asked(synth: Blendrun, blendrun: Blendrun):
    figures = json.loads(default(synth).out.splitlines()[-1])
    plain = plan_of(blendrun, "out.parquet")
    assert "column" not in plain["counts"]["lengths_from"]
    told = plan_of(blendrun, "out.parquet", "--output-len-column", "true_output_len")
    assert told["counts"]["lengths_from"] == {"column": 1000}
    assert told["counts"]["rejected"] == 0
    for name in ("prompt_tokens", "unique_prompt_tokens"):
        assert told["counts"][name] == figures[name]
    assert told["times"]["density"] == pytest.approx(figures["density"])


def test_plan_takes_lengths_in_output_len_by_itself(synth: Blendrun, blendrun: Blendrun):
    assert default(synth, "out.parquet", "--length-column", "output_len").code == 0
    assert plan_of(blendrun, "out.parquet")["counts"]["lengths_from"] == {"column": 1000}


def test_a_seed_writes_one_file_and_another_seed_another(synth: Blendrun, tmp_path: Path):
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        words = ("--requests", 20, "--set", "quiz=mmlu", "--seed", seed)
        assert synth(f"{name}.jsonl", *words).code == 0
    a, b, c = ((tmp_path / f"{name}.jsonl").read_bytes() for name in "abc")
    assert a == b != c


def test_sets_of_ones_own_and_a_new_folder(synth: Blendrun, tmp_path: Path):
    write_trace(tmp_path / "chat.parquet", [(100, 90), (700, 30)])
    sets = ["--set", "chat=trace:chat.parquet", "--set", "long=openvid", "--system-len", 5]
    said = synth("new/out.jsonl", "--requests", 500, "--density", 0.5, *sets)
    assert (said.code, said.err) == (0, "")
    rows = [json.loads(line) for line in (tmp_path / "new" / "out.jsonl").read_text().splitlines()]
    assert {row["set"] for row in rows} == {"chat", "long"}
    lengths = {len(row["prompt_token_ids"]) for row in rows if row["set"] == "chat"}
    assert lengths == {105, 705}


def test_one_set_is_taken_as_it_is(synth: Blendrun):
    said = synth("out.jsonl", "--requests", 10, "--set", "quiz=mmlu")
    assert (said.code, said.err) == (0, "")
    assert "wanted" not in said.out


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--requests", 10, *TARGETS], "--traces is missing"),
        (["--requests", 10, *TARGETS, "--traces", "none"], "no length trace"),
        (["--requests", 10, "--traces", "traces"], "--density is missing"),
        (["--requests", 10, "--traces", "traces", "--density", 1], "--sharing is missing"),
        (["--requests", 10, "--set", "a=mmlu", "--density", 1], "no density can be chosen"),
        (["--requests", 10, "--set", "a=quiz"], "'quiz' is no kind of set"),
        (["--requests", 10, "--set", "a=mmlu", "--sharing", 35], "sharing must be"),
        (["--requests", 10, "--set", "a=mmlu", "--length-column", "set"], "column 'set'"),
        (["--requests", 900, "--traces", "traces", "--density", 1.4, "--sharing", 0.99], "reach"),
        (["--requests", 0, "--set", "a=mmlu"], "at least 1 request"),
        (["--requests", 10, "--set", "a=mmlu", "--seed", -1], "seed must be"),
        (["--requests", 10, "--set", "a=mmlu", "--cost", "free"], "cost must be one of"),
        (["--requests", 10, "--set", "a=mmlu", "--hardware", "abacus"], "'abacus'"),
    ],
)
def test_what_cannot_be_made_is_refused(
    words: list[object], part: str, synth: Blendrun, tmp_path: Path
):
    said = synth("out.parquet", *words)
    assert said.code == 2
    assert part in said.err
    assert "Traceback" not in said.err
    assert not (tmp_path / "out.parquet").exists()


def test_a_name_or_model_that_says_too_little_is_refused(blendrun: Blendrun):
    said = blendrun("synth", "out.csv", "--requests", 5, "--set", "a=mmlu", *MACHINE)
    assert (said.code, "extension" in said.err) == (2, True)
    said = blendrun("synth", "out.parquet", "--requests", 5, "--set", "a=mmlu")
    assert (said.code, "--model is missing" in said.err) == (2, True)
    assert blendrun("synth", "out.parquet", *MACHINE).code == 2  # how many?
