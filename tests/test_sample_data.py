import importlib.util
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

SAMPLES = Path(__file__).parents[1] / "sample_data"


def json_rows() -> list[dict[str, object]]:
    lines = (SAMPLES / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_ids_are_unique_over_both_files():
    ids = [row["id"] for row in json_rows()]
    ids += pq.read_table(SAMPLES / "units.parquet")["id"].to_pylist()
    assert len(ids) == len(set(ids)) >= 40


def test_each_row_has_one_kind_of_prompt():
    assert all(("prompt" in row) != ("messages" in row) for row in json_rows())


def test_committed_parquet_is_what_its_script_writes():
    spec = importlib.util.spec_from_file_location("make_parquet", SAMPLES / "make_parquet.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    table = script.sample_table()
    assert isinstance(table, pa.Table)
    assert pq.read_table(SAMPLES / "units.parquet").equals(table)
