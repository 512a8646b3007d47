"""Work in other processes: in order, a bounded number ahead, errors where they belong."""

import signal

import numpy as np
import pyarrow as pa
import pytest

from blendrun.data.columns import ColumnNames
from blendrun.data.sampling import SamplingParams
from blendrun.data.tokenizer import PromptTokenizer
from blendrun.data.workers import Workers
from blendrun.errors import BackendError, InputError
from blendrun.units import parse_bytes
from tiny_ingest import ingest


def test_results_come_in_order_and_an_error_at_its_place():
    taken = []

    def pieces():
        for size in ("1", "2KiB", "3", "much", "5"):
            taken.append(size)
            yield size

    with Workers(parse_bytes, 1) as workers:
        results = workers.map(pieces())
        for seen, expected in enumerate([1, 2048, 3], start=1):
            assert next(results) == expected
            assert len(taken) <= seen + 2  # what is under way is bounded
        with pytest.raises(InputError, match="much") as caught:
            next(results)
    assert caught.value.hint


def test_a_killed_worker_is_told_plainly():
    with (
        Workers(signal.raise_signal, 1) as workers,
        pytest.raises(BackendError, match="was killed") as caught,
    ):
        list(workers.map([signal.SIGKILL]))
    assert "--workers" in (caught.value.hint or "")


ROWS = (
    '{"prompt": "a", "note": 1}\n[1]\n{"prompt": ""}\n\n'
    '{"messages": [{"role": "user", "content": "b"}]}\n{"prompt_token_ids": [1, 2, 999]}\n'
    '{"prompt_token_ids": [1, 2], "max_tokens": 5, "note": 1.5}\n'
    '{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}\n'
)


def test_several_processes_make_the_same_requests_as_one(tmp_path, checkpoint, monkeypatch):
    tokenizer = PromptTokenizer.from_folder(checkpoint)
    monkeypatch.setattr("blendrun.data.jsonl_reader._BATCH_ROWS", 2)
    path = tmp_path / "rows.jsonl"
    path.write_text(ROWS * 3, encoding="utf-8")

    def run(name, workers):
        arguments = (ColumnNames(), tokenizer, SamplingParams(), 1000, 257, tmp_path / name)
        return ingest([str(path)], *arguments, num_workers=workers)

    one, two = run("one", 1), run("two", 2)
    assert one.num_rows == two.num_rows == 21
    assert one.requests == two.requests
    assert one.rejected == two.rejected
    assert one.sources == two.sources
    assert np.array_equal(one.store.tokens, two.store.tokens)
    codes = one.rejected["code"].to_pylist()
    assert codes[:2] == ["bad_json", "empty_prompt"]
    assert codes.count("bad_request") == 2  # the custom_id that is there three times


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_windows_take_the_rows_one_after_the_other(tmp_path, tokenizer, size):
    from blendrun.data.ingest import Ingester

    path = tmp_path / "rows.jsonl"
    path.write_text(ROWS * 2, encoding="utf-8")
    arguments = (ColumnNames(), tokenizer, SamplingParams(), 1000, 257)
    whole = ingest([str(path)], *arguments, tmp_path / "whole")
    windows = []
    with Ingester([str(path)], *arguments) as ingester:
        while not ingester.at_end():
            windows.append(ingester.take(tmp_path / str(len(windows)), size))
        assert ingester.sources() == whole.sources
    assert [w.num_rows for w in windows[:-1]] == [size] * (len(windows) - 1)
    assert sum(w.num_rows for w in windows) == whole.num_rows
    assert pa.concat_tables([w.requests for w in windows]) == whole.requests
    assert pa.concat_tables([w.rejected for w in windows]) == whole.rejected
    tokens = np.concatenate([w.store.tokens for w in windows])
    assert np.array_equal(tokens, whole.store.tokens)
