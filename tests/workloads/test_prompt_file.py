import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blendrun.errors import InputError
from tiny_workloads import drawn, prompts_of, workload_of

COLUMNS = ["id", "set", "prompt_token_ids", "max_tokens", "true_output_len"]


def small():
    return workload_of(drawn([3, 2], output_len=[2, 7]), drawn([4], output_len=[1]))


def test_parquet_has_one_row_per_request_in_order_of_arrival(tmp_path: Path):
    workload, path = small(), tmp_path / "a.parquet"
    workload.write(path)
    table = pq.read_table(path)
    assert table.column_names == COLUMNS
    types = [pa.string(), pa.string(), pa.list_(pa.int32()), pa.int32(), pa.int32()]
    assert table.schema.types == types
    assert table["prompt_token_ids"].to_pylist() == prompts_of(workload)
    assert table["max_tokens"].to_pylist() == workload.max_tokens.tolist()
    assert table["true_output_len"].to_pylist() == workload.output_len.tolist()
    names = [workload.set_names[i] for i in workload.set_idx]
    assert table["set"].to_pylist() == names
    ids = [f"{name}-{n:06d}" for name, n in zip(names, workload.number, strict=True)]
    assert table["id"].to_pylist() == ids
    assert len(set(ids)) == 3
    assert [p.name for p in tmp_path.iterdir()] == ["a.parquet"]


def test_json_lines_hold_the_same_rows(tmp_path: Path):
    workload = small()
    for name in ("a.parquet", "a.jsonl"):
        workload.write(tmp_path / name)
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == pq.read_table(tmp_path / "a.parquet").to_pylist()


def test_a_long_file_is_written_in_several_row_groups(tmp_path: Path):
    workload, path = workload_of(drawn([2000] * 3000)), tmp_path / "a.parquet"
    workload.write(path)
    file = pq.ParquetFile(path)
    assert file.num_row_groups == 2
    assert file.metadata.num_rows == 3000


def test_the_column_of_true_lengths_can_be_named(tmp_path: Path):
    small().write(tmp_path / "a.parquet", "output_len")
    assert pq.read_schema(tmp_path / "a.parquet").names == [*COLUMNS[:-1], "output_len"]


@pytest.mark.parametrize("name", ["", "id", "set", "max_tokens", "prompt", "seed", "status"])
def test_a_length_column_that_means_something_else_is_refused(name: str, tmp_path: Path):
    with pytest.raises(InputError, match="true lengths"):
        small().write(tmp_path / "a.parquet", name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a.csv", "a.json", "a", "a.jsonl.gz"])
def test_a_kind_of_file_that_is_not_written_is_refused(name: str, tmp_path: Path):
    with pytest.raises(InputError) as caught:
        small().write(tmp_path / name)
    assert caught.value.hint
    assert not list(tmp_path.iterdir())
