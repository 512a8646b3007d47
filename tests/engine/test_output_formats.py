"""Outputs in other formats hold the same answers."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blendrun.data.exports import ERRORS_FILE, JSONL_FILE, RESULTS_FILE
from blendrun.engine import torch_backend
from blendrun.errors import InputError
from tiny_jobs import execute, plan_files, plan_job, write_rows

CHAT = [{"role": "user", "content": "jump over the fox"}]
ROWS: list[dict[str, Any]] = [
    {"custom_id": "a", "prompt": "the quick", "max_tokens": 3, "tag": 1, "logprobs": 2},
    {"custom_id": "b", "prompt": None, "tag": "two"},
    {"custom_id": "c", "messages": CHAT, "max_tokens": 4, "n": 2, "temperature": 1.0},
    {"custom_id": "d", "messages": CHAT, "max_tokens": 2, "tag": {"x": [1]}, "logprobs": 0},
]
REFUSED = ("invalid_request_error", None)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def plan(checkpoint: Path, tmp_path: Path) -> Path:
    return plan_job(tmp_path, ROWS, checkpoint)[0]


def test_jsonl_has_every_row_with_its_columns_and_its_answer(plan: Path, tmp_path: Path):
    result = execute(plan, tmp_path / "run", output_format="jsonl")
    assert result.outputs == tmp_path / "run" / JSONL_FILE
    made = lines(result.outputs)
    parquet = pq.read_table(tmp_path / "run" / "outputs.parquet").to_pylist()
    assert len(made) == len(parquet) == 5
    assert [row["tag"] for row in made] == [1, "two", None, None, {"x": [1]}]  # as it was
    assert made[2]["messages"] == CHAT
    for row, other in zip(made, parquet, strict=True):
        for key in ("output_text", "output_token_ids", "status", "error", "output_index"):
            assert row[key] == other[key]
        assert row["output_logprobs"] == pytest.approx(other["output_logprobs"])


def test_openai_has_results_and_errors_by_custom_id(plan: Path, tmp_path: Path):
    result = execute(plan, tmp_path / "run", output_format="openai")
    assert result.outputs == tmp_path / "run" / RESULTS_FILE
    parquet = pq.read_table(tmp_path / "run" / "outputs.parquet").to_pylist()
    text, several, chat = lines(result.outputs)
    (error,) = lines(tmp_path / "run" / ERRORS_FILE)
    assert (error["custom_id"], error["error"]) == ("b", None)
    assert error["response"]["status_code"] == 400
    why = error["response"]["body"]["error"]
    assert (why["code"], why["type"], why["param"]) == ("empty_prompt", *REFUSED)
    assert why["message"]
    for line, custom_id in ((text, "a"), (several, "c"), (chat, "d")):
        assert set(line) == {"id", "custom_id", "response", "error"}
        assert (line["custom_id"], line["error"]) == (custom_id, None)
        assert set(line["response"]) == {"status_code", "request_id", "body"}
        assert line["response"]["status_code"] == 200
    assert len({line["id"] for line in (text, several, chat, error)}) == 4
    body = text["response"]["body"]
    assert body["object"] == "text_completion"
    (choice,) = body["choices"]
    assert (choice["text"], choice["finish_reason"]) == (parquet[0]["output_text"], "length")
    assert len(choice["logprobs"]["tokens"]) == 3
    assert choice["logprobs"]["text_offset"][0] == 0
    assert [len(top) for top in choice["logprobs"]["top_logprobs"]] == [2, 2, 2]
    usage = body["usage"]
    assert usage["completion_tokens"] == 3
    assert usage["total_tokens"] == usage["prompt_tokens"] + 3
    body = several["response"]["body"]
    assert body["object"] == "chat.completion"
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert [choice["message"] for choice in body["choices"]] == [
        {"role": "assistant", "content": parquet[i]["output_text"], "refusal": None} for i in (2, 3)
    ]
    assert body["usage"]["completion_tokens"] == 8
    content = chat["response"]["body"]["choices"][0]["logprobs"]["content"]
    assert [place["logprob"] for place in content] == pytest.approx(parquet[4]["output_logprobs"])
    assert [place["top_logprobs"] for place in content] == [[], []]


def test_a_complete_run_is_written_in_another_format_without_running(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    execute(plan, tmp_path / "run")
    monkeypatch.delattr(torch_backend.TorchBackend, "run")
    result = execute(plan, tmp_path / "run", output_format="jsonl")
    assert result.was_complete
    assert len(lines(result.outputs)) == 5
    written = result.outputs.stat().st_mtime_ns
    assert execute(plan, tmp_path / "run", output_format="jsonl").outputs == result.outputs
    assert result.outputs.stat().st_mtime_ns == written


@pytest.mark.parametrize("output_format", ["parquet", "jsonl", "openai"])
def test_outputs_in_parts_are_the_rows_of_one_file_in_order(
    output_format: str, checkpoint: Path, tmp_path: Path
):
    sources = [write_rows(tmp_path / f"{i}.jsonl", ROWS[2 * i : 2 * i + 2]) for i in (0, 1)]
    plan, _ = plan_files(tmp_path / "plan.json", sources, checkpoint)
    one = execute(plan, tmp_path / "one", output_format=output_format)
    run_dir = tmp_path / "run"
    small = execute(plan, run_dir, output_format=output_format, output_part_size=1)
    assert (small.num_rows, small.num_errors) == (one.num_rows, one.num_errors)
    whole = pq.read_table(tmp_path / "one" / "outputs.parquet")
    parts = sorted((run_dir / "outputs").iterdir())
    assert [path.name for path in parts] == ["part-00000.parquet", "part-00001.parquet"]
    assert (
        pq.read_table(run_dir / "outputs")
        .drop(["num_cached_tokens"])
        .equals(whole.drop(["num_cached_tokens"]))
    )
    assert not (run_dir / "outputs.parquet").exists()
    for name, folder in (
        (JSONL_FILE, "outputs-jsonl"),
        (RESULTS_FILE, "openai-results"),
        (ERRORS_FILE, "openai-errors"),
    ):
        assert (tmp_path / "one" / name).exists() == (run_dir / folder).exists()
        if (run_dir / folder).exists():
            made = [row for path in sorted((run_dir / folder).iterdir()) for row in lines(path)]
            wanted = lines(tmp_path / "one" / name)
            keys = ("id", "custom_id", "output_text", "error")
            assert [[row.get(k) for k in keys] for row in made] == [
                [row.get(k) for k in keys] for row in wanted
            ]


def test_outputs_change_their_shape_without_running(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run_dir = tmp_path / "run"
    before = execute(plan, run_dir, output_format="jsonl").outputs
    table = pq.read_table(run_dir / "outputs.parquet")
    monkeypatch.delattr(torch_backend.TorchBackend, "run")
    parted = execute(plan, run_dir, output_part_size=1000)
    assert parted.outputs == run_dir / "outputs"
    assert pq.read_table(parted.outputs).equals(table)
    assert not before.exists()
    assert not (run_dir / "outputs.parquet").exists()
    assert execute(plan, run_dir, output_part_size=1000).was_complete
    assert not execute(plan, run_dir, output_part_size=2000).was_complete
    whole = execute(plan, run_dir)
    assert pq.read_table(whole.outputs).equals(table)
    assert not (run_dir / "outputs").exists()


def test_a_folder_of_outputs_that_no_run_has_made_is_left_alone(plan: Path, tmp_path: Path):
    (tmp_path / "run" / "outputs").mkdir(parents=True)
    with pytest.raises(InputError, match="outputs that no run has made"):
        execute(plan, tmp_path / "run", output_part_size=1000)
    assert (tmp_path / "run" / "outputs").is_dir()


def test_times_of_nanoseconds_are_text_in_jsonl(checkpoint: Path, tmp_path: Path):
    source = tmp_path / "times.parquet"
    times = pa.array([1, None], pa.timestamp("ns", "UTC"))
    pq.write_table(pa.table({"prompt": ["42", "fox"], "t": times}), source)
    plan, _ = plan_files(tmp_path / "plan.json", [source], checkpoint, max_tokens=1)
    result = execute(plan, tmp_path / "run", output_format="jsonl")
    assert [row["t"] for row in lines(result.outputs)] == ["1970-01-01T00:00:00.000000001Z", None]


def test_without_errors_there_is_no_error_file(checkpoint: Path, tmp_path: Path):
    plan, _ = plan_job(tmp_path, ROWS[:1], checkpoint)
    execute(plan, tmp_path / "run", output_format="openai")
    assert not (tmp_path / "run" / ERRORS_FILE).exists()


def test_other_formats_do_not_outlive_the_outputs_they_were_made_from(
    checkpoint: Path, tmp_path: Path
):
    rows = [{"custom_id": "large", "prompt": "42", "max_tokens": 150}]
    plan, _ = plan_job(tmp_path, rows, checkpoint)
    run_dir = tmp_path / "run"
    execute(plan, run_dir, output_format="openai", page_size=4, kv_memory=20 * 4 * 512)
    assert len(lines(run_dir / ERRORS_FILE)) == 1
    execute(plan, run_dir, retry_errors=True)
    assert not (run_dir / ERRORS_FILE).exists()
    assert not (run_dir / RESULTS_FILE).exists()


def test_openai_needs_custom_ids(checkpoint: Path, tmp_path: Path):
    plan, _ = plan_job(tmp_path, [{"prompt": "42"}], checkpoint)
    with pytest.raises(InputError, match="custom_id"):
        execute(plan, tmp_path / "run", output_format="openai")
    assert not (tmp_path / "run").exists()
