"""Parquet: batches join to the file; damage is told by name."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blendrun.data import parquet_reader
from blendrun.data.parquet_reader import read_parquet, read_schema
from blendrun.errors import InputError


@pytest.fixture
def path(tmp_path):
    table = pa.table({"a": range(100), "b.c": [str(i) for i in range(100)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=30)
    return tmp_path / "a.parquet"


@pytest.mark.parametrize(("limit", "expected"), [(None, 100), (1, 1), (35, 35), (500, 100)])
def test_the_first_rows_come_in_order(path, monkeypatch, limit, expected):
    monkeypatch.setattr(parquet_reader, "_BATCH_ROWS", 7)
    batches = list(read_parquet(path, limit=limit))
    assert len(batches) >= expected / 7
    assert pa.Table.from_batches(batches)["a"].to_pylist() == list(range(expected))


def test_only_the_named_columns_are_read(path):
    (batch,) = read_parquet(path, ["b.c"], limit=1)
    assert batch.schema.names == ["b.c"]


def test_rows_of_megabytes_come_one_at_a_time(tmp_path):
    path = tmp_path / "wide.parquet"
    pq.write_table(pa.table({"a": ["x" * 9_000_000, "y"]}), path, use_dictionary=False)
    assert [batch.num_rows for batch in read_parquet(path)] == [1, 1]


def test_progress_ends_at_the_size_of_the_file(path):
    seen = []
    list(read_parquet(path, progress=seen.append))
    assert seen[-1] == path.stat().st_size


def test_a_file_without_rows_still_has_its_columns(tmp_path):
    path = tmp_path / "empty.parquet"
    schema = pa.schema([("a", pa.int8())])
    pq.ParquetWriter(path, schema).close()
    assert read_schema(path) == schema
    assert list(read_parquet(path)) == []


def test_what_is_not_parquet_is_refused_by_name(tmp_path, path):
    bad = tmp_path / "bad.parquet"
    for content in (b"", b"not parquet at all", path.read_bytes()[:-20]):
        bad.write_bytes(content)
        with pytest.raises(InputError, match=r"bad\.parquet"):
            read_schema(bad)


def test_damaged_pages_are_told_with_the_row(path):
    content = bytearray(path.read_bytes())
    content[4:400] = bytes(396)
    path.write_bytes(content)
    with pytest.raises(InputError, match="damaged after row 0"):
        list(read_parquet(path))
