"""Columns in the names of folders: text as written, whoever names the file."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blendrun.data.columns import ColumnNames
from blendrun.data.locations import locate
from blendrun.data.partitions import partitions_of
from blendrun.errors import InputError
from tiny_ingest import through


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/data/shard=007/part.parquet", {"shard": "007"}),
        ("/data/a=1/b=x=y/p.jsonl", {"a": "1", "b": "x=y"}),
        ("/data/a=1/plain/p.jsonl", {}),
        ("/data/a=/b=%2F%25/p.jsonl", {"a": "", "b": "/%"}),
        ("/data/a=__HIVE_DEFAULT_PARTITION__/p.jsonl", {"a": None}),
        ("/data/=1/p.jsonl", {}),
        ("/data/x=1.jsonl", {}),
        ("s3://bucket/day=2024-01-01/p.jsonl", {"day": "2024-01-01"}),
    ],
)
def test_folders_directly_above_the_file_are_columns(path, expected):
    assert partitions_of(locate(path)) == expected


@pytest.fixture
def outputs(tmp_path, tokenizer):
    """The output of a job whose rows are all too long."""

    def call(*paths, columns=ColumnNames()):  # noqa: B008
        names = [tmp_path / path for path in paths]
        return through(names, tmp_path, tokenizer, columns, context_len=1)[1]

    return call


@pytest.fixture
def tree(tmp_path):
    for shard in ("007", "010"):
        folder = tmp_path / "tree" / f"shard={shard}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"prompt": [shard, "x"]}), folder / "part.parquet")
        (folder / "more.jsonl").write_text('{"prompt": "y"}\nbad\n{"prompt": "z", "shard": "own"}')
    return tmp_path


@pytest.mark.usefixtures("tree")
def test_values_stay_text_in_every_row_also_the_bad_ones(outputs):
    table = outputs("tree")
    assert table.schema.field("shard").type == pa.string()
    assert table["shard"].to_pylist() == [
        *("007", "007", "own", "007", "007"),
        *("010", "010", "own", "010", "010"),
    ]


@pytest.mark.usefixtures("tree")
def test_one_file_of_the_tree_has_the_same_columns(outputs):
    table = outputs("tree/shard=007/part.parquet")
    assert table.column_names[:2] == ["prompt", "shard"]
    assert table["shard"].to_pylist() == ["007", "007"]


def test_a_column_of_the_file_wins_over_the_folder(tmp_path, outputs):
    folder = tmp_path / "k=1"
    folder.mkdir()
    pq.write_table(pa.table({"prompt": ["x"], "k": [5]}), folder / "a.parquet")
    assert outputs("k=1")["k"].to_pylist() == [5]


def test_where_rows_disagree_in_kind_the_folder_is_json_text_too(tmp_path, outputs):
    folder = tmp_path / "k=1"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"prompt": "x", "k": [5]}\n{"prompt": "y"}\nbad\n')
    assert [json.loads(n) for n in outputs("k=1")["k"].to_pylist()] == [[5], "1", "1"]


def test_a_folder_may_hold_the_prompt_or_clash(tmp_path, outputs):
    for name in ("word=hello", "status=x"):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"prompt": ["x"]}), tmp_path / name / "a.parquet")
    table = outputs("word=hello/a.parquet", columns=ColumnNames(prompt="word"))
    assert "the prompt has 5 tokens" in table["error"].to_pylist()[0]
    with pytest.raises(InputError, match="already has a column 'status'"):
        outputs("status=x")
