"""The final file: every row once, in order, columns unchanged, a reason where no answer is."""

import datetime
import decimal
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blendrun.data import outputs, parquet_reader, row_ranges
from blendrun.data.answers import PLAIN_OUTPUT_COLUMNS, answers_table
from blendrun.data.columns import ColumnNames
from blendrun.data.outputs import write_outputs
from blendrun.data.results import ResultJournal
from blendrun.data.sampling import SamplingParams
from blendrun.errors import PlanError
from tiny_ingest import ingest, through


@pytest.fixture(autouse=True, params=["one range", "many ranges"])
def ranges(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All answers of these jobs in memory at once, and a few rows at a time."""
    if request.param == "many ranges":
        monkeypatch.setattr(row_ranges, "_RANGE_BYTES", 300)
        monkeypatch.setattr(row_ranges, "_PENDING_BYTES", 200)


@pytest.fixture
def job(tmp_path, tokenizer):
    """Ingests files; answers each request by its row, in the order `order` puts them."""

    def call(*paths, order=lambda rows: rows, parts=2):
        names = [str(path) for path in paths]
        store = tmp_path / "store"
        result = ingest(names, ColumnNames(), tokenizer, SamplingParams(), 100, 257, store)
        rows = order(result.requests["row"].to_numpy())
        with ResultJournal(tmp_path / "run") as journal:
            for part in np.array_split(rows, parts):
                journal.append(answer(part))
        return result, lambda: write_outputs(
            tmp_path / "run", result.sources, result.num_rows, result.rejected
        )

    return call


def answer(rows):
    return answers_table(
        row=rows,
        output_text=[f"answer {row}" for row in rows],
        output_token_ids=[[row] for row in rows],
        finish_reason=["length"] * len(rows),
        num_prompt_tokens=[2] * len(rows),
        num_cached_tokens=[1] * len(rows),
    )


def all_types(num_rows):
    day = datetime.date(2024, 1, 1)
    values = {
        pa.large_string(): "a\u2028b",
        pa.string_view(): "view",
        pa.dictionary(pa.int16(), pa.string()): "word",
        pa.int64(): 2**63 - 1,
        pa.uint64(): 2**64 - 1,
        pa.decimal128(20, 3): decimal.Decimal("12345678901234567.891"),
        pa.timestamp("ns", "Europe/Berlin"): datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
        pa.timestamp("us"): datetime.datetime(2024, 1, 1),
        pa.date32(): day,
        pa.binary(): b"\x00\xff",
        pa.float32(): 0.1,
        pa.bool_(): True,
        pa.list_(pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))])): [
            {"a": 1, "b": [None, "x"]}
        ],
        pa.map_(pa.string(), pa.int32()): [("k", 1)],
    }
    columns = {"prompt": pa.array([f"p{i}" for i in range(num_rows)])}
    for number, (kind, value) in enumerate(values.items()):
        column = [value if row % 3 else None for row in range(num_rows)]
        columns[f"c{number}"] = pa.array(column, kind)
    table = pa.table(columns)
    return table.replace_schema_metadata({"pandas": "{}", "mine": "kept"})


def test_columns_types_and_metadata_of_a_parquet_file_are_unchanged(tmp_path, job, monkeypatch):
    monkeypatch.setattr(parquet_reader, "_BATCH_ROWS", 4)
    monkeypatch.setattr(outputs, "_GROUP_BYTES", 1500)
    source = tmp_path / "a.parquet"
    pq.write_table(all_types(25), source, row_group_size=7)
    _, write = job(source, order=lambda rows: rows[::-1], parts=5)
    written = pq.read_table(write())
    expected = pq.read_table(source)
    own = written.drop(list(PLAIN_OUTPUT_COLUMNS))
    assert own.equals(expected)
    assert own.schema.equals(expected.schema, check_metadata=True)
    assert written["output_text"].to_pylist() == [f"answer {row}" for row in range(25)]
    assert written["output_token_ids"].to_pylist() == [[row] for row in range(25)]
    assert pq.ParquetFile(tmp_path / "run" / "outputs.parquet").num_row_groups > 1


def test_json_columns_come_back_by_kind_and_bad_rows_with_their_reason(tmp_path, job):
    chat = [{"role": "user", "content": "hi"}]
    lines = [
        json.dumps({"id": 2**63 - 1, "prompt": "2024-01-01", "x": 1}),
        "not json",
        json.dumps({"prompt": "7", "big": 12345678901234567890123, "x": 0.5}),
        json.dumps({"messages": chat, "meta": {"a": [1, {}]}}),
        json.dumps({"prompt": None, "id": -1, "meta": "text"}),
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("\n\n".join(lines))
    _, write = job(path)
    table = pq.read_table(write())
    own = ["id", "prompt", "x", "big", "messages", "meta"]
    assert table.schema.names == [*own, *PLAIN_OUTPUT_COLUMNS]
    assert table["id"].to_pylist() == [2**63 - 1, None, None, None, -1]
    assert table["prompt"].to_pylist() == ["2024-01-01", None, "7", None, None]
    assert table["x"].to_pylist() == [1.0, None, 0.5, None, None]
    assert table["big"].to_pylist() == [None, None, "12345678901234567890123", None, None]
    assert table["messages"].to_pylist() == [None, None, None, chat, None]
    assert table["meta"].to_pylist() == [None, None, None, '{"a": [1, {}]}', '"text"']
    assert table["status"].to_pylist() == ["ok", "error", "ok", "ok", "error"]
    errors = table["error"].to_pylist()
    assert errors[1].startswith(f"bad_json: {path}, line 3: Expecting value")
    assert errors[4].startswith("empty_prompt: ")
    assert [errors[i] for i in (0, 2, 3)] == [None] * 3
    for name in set(PLAIN_OUTPUT_COLUMNS) - {"status", "error", "stop_reason"}:
        assert [v is None for v in table[name].to_pylist()] == [False, True, False, False, True]


def test_files_of_both_formats_join_by_column_name(tmp_path, job):
    (tmp_path / "a.jsonl").write_text('{"prompt":"a","n":1}\n{"prompt":"b","only":"x"}\n')
    table = pa.table({"n": pa.array([7], pa.int32()), "prompt": pa.array(["c"], pa.large_string())})
    pq.write_table(table, tmp_path / "b.parquet")
    (tmp_path / "c.jsonl").write_text('{"prompt":"d","only":5}\n')
    _, write = job(tmp_path)
    table = pq.read_table(write())
    assert table["prompt"].to_pylist() == ["a", "b", "c", "d"]
    assert table["n"].to_pylist() == [1, None, 7, None]
    assert table["only"].to_pylist() == [None, '"x"', None, "5"]
    assert table["output_text"].to_pylist() == [f"answer {row}" for row in range(4)]


def test_no_rows_give_a_file_with_the_full_schema(tmp_path, job):
    path = tmp_path / "a.parquet"
    pq.ParquetWriter(path, pa.schema([("prompt", pa.string()), ("x", pa.int8())])).close()
    _, write = job(path)
    table = pq.read_table(write())
    assert (table.num_rows, table.schema.names) == (0, ["prompt", "x", *PLAIN_OUTPUT_COLUMNS])


def test_a_file_of_bad_lines_only_still_has_its_rows(tmp_path, job):
    path = tmp_path / "a.jsonl"
    path.write_text("one\ntwo\n")
    _, write = job(path)
    assert pq.read_table(write())["status"].to_pylist() == ["error", "error"]


def test_only_the_first_rows_of_a_limited_job_are_written(tmp_path, tokenizer):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt":"a"}\n{"prompt":"b"}\n{"prompt":"c","late":1}\n')
    arguments = ([str(path)], ColumnNames(), tokenizer, SamplingParams(), 9, 257, tmp_path / "s")
    result = ingest(*arguments, limit=2)
    with ResultJournal(tmp_path / "run") as journal:
        journal.append(answer(np.arange(2)))
    table = pq.read_table(write_outputs(tmp_path / "run", result.sources, 2, result.rejected))
    assert table["prompt"].to_pylist() == ["a", "b"]
    assert "late" not in table.schema.names


def test_a_row_without_an_answer_stops_the_file(tmp_path, job):
    (tmp_path / "a.jsonl").write_text('{"prompt":"a"}\n' * 5)
    _, write = job(tmp_path / "a.jsonl", order=lambda rows: rows[[0, 1, 4]])
    with pytest.raises(PlanError, match="row 2 has no answer yet"):
        write()
    assert not list((tmp_path / "run").glob("outputs*"))


def test_an_answer_without_a_row_stops_the_file(tmp_path, job):
    (tmp_path / "a.jsonl").write_text('{"prompt":"a"}\n' * 2)
    _, write = job(tmp_path / "a.jsonl", order=lambda rows: np.append(rows, 9))
    with pytest.raises(PlanError, match="row 9"):
        write()


def test_a_count_that_is_not_the_inputs_stops_the_file(tmp_path, job):
    (tmp_path / "a.jsonl").write_text('{"prompt":"a"}\n' * 3)
    result, _ = job(tmp_path / "a.jsonl")
    with ResultJournal(tmp_path / "run") as journal:
        journal.append(answer(np.array([3])))
    with pytest.raises(PlanError, match="do not have the 4 rows"):
        write_outputs(tmp_path / "run", result.sources, 4, result.rejected)
    assert not list((tmp_path / "run").glob("outputs*"))


def test_a_changed_input_is_refused_by_name(tmp_path, job):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt":"a"}\n')
    _, write = job(path)
    write()
    path.write_text('{"prompt":"b"}\n')
    with pytest.raises(PlanError, match=r"a\.jsonl has changed"):
        write()


def test_parts_have_the_rows_in_order_and_none_too_many(tmp_path, monkeypatch, tokenizer):
    monkeypatch.setattr(parquet_reader, "_BATCH_ROWS", 10)
    source = tmp_path / "rows.parquet"
    notes = [f"{i:05d}" * 40 for i in range(2000)]
    pq.write_table(pa.table({"prompt": ["x"] * 2000, "note": notes}), source, row_group_size=50)
    result, whole = through([source], tmp_path, tokenizer)
    wanted = (result.sources, result.num_rows, result.rejected)
    folder = outputs.write_outputs(tmp_path / "run", *wanted, part_bytes=20_000)
    parts = sorted(folder.iterdir())
    assert [path.name for path in parts] == [f"part-{i:05d}.parquet" for i in range(len(parts))]
    assert len(parts) > 2
    tables = [pq.read_table(path) for path in parts]
    assert all(table.num_rows for table in tables)
    assert pa.concat_tables(tables).equals(whole)
    before = [path.read_bytes() for path in parts]
    outputs.write_outputs(tmp_path / "run", *wanted, part_bytes=20_000)
    assert [path.read_bytes() for path in sorted(folder.iterdir())] == before


def test_a_job_without_rows_has_one_part(tmp_path, tokenizer):
    source = tmp_path / "rows.jsonl"
    source.write_bytes(b"")
    result, whole = through([source], tmp_path, tokenizer)
    wanted = (result.sources, result.num_rows, result.rejected)
    folder = outputs.write_outputs(tmp_path / "run", *wanted, part_bytes=1)
    assert pq.read_table(folder / "part-00000.parquet").equals(whole)
