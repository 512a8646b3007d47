"""Columns of the output: the input's, unchanged; several inputs by name or refused early."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blendrun.data.answers import OUTPUT_COLUMNS
from blendrun.data.output_schema import output_schema
from blendrun.data.sources import SourceFile
from blendrun.errors import InputError

NUM_OWN = len(OUTPUT_COLUMNS)


def parquet(folder, name, schema):
    pq.write_table(schema.empty_table(), folder / name)
    return SourceFile(str(folder / name), "parquet", 0, 0, "")


def jsonl(**kinds):
    return SourceFile("/x.jsonl", "jsonl", 0, 0, "", tuple(kinds.items()))


def joined(folder, first, second):
    sources = [
        parquet(folder, f"{name}.parquet", pa.schema([("x", kind)]))
        for name, kind in (("a", first), ("b", second))
    ]
    return output_schema(sources).field("x").type


def test_one_parquet_file_keeps_its_schema_to_the_metadata(tmp_path):
    schema = pa.schema(
        [pa.field("x", pa.int8(), nullable=False, metadata={"unit": "m"}), ("y", pa.null())],
        metadata={"pandas": "{}"},
    )
    source = parquet(tmp_path, "a.parquet", schema)
    output = output_schema([source])
    own = pa.schema(list(output)[:-NUM_OWN], metadata=output.metadata)
    assert own.equals(pq.read_schema(tmp_path / "a.parquet"), check_metadata=True)
    assert output.names[-NUM_OWN:] == list(OUTPUT_COLUMNS)
    assert output.metadata[b"pandas"] == b"{}"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.uint8(), pa.int32(), pa.int32()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.null(), pa.date32(), pa.date32()),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.string_view(), pa.string(), pa.string()),
        (pa.dictionary(pa.int32(), pa.string()), pa.string(), pa.string()),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), pa.list_(pa.int64())),
    ],
    ids=str,
)
def test_types_widen_where_no_value_changes(tmp_path, first, second, expected):
    assert joined(tmp_path, first, second) == expected
    assert joined(tmp_path, second, first) == expected


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pa.int64(), pa.string()),
        (pa.int64(), pa.float64()),
        (pa.int64(), pa.uint64()),
        (pa.timestamp("ms"), pa.timestamp("ns")),
        (pa.list_(pa.int64()), pa.list_(pa.float64())),
        (pa.struct([("a", pa.int64())]), pa.string()),
        (pa.bool_(), pa.int8()),
    ],
    ids=str,
)
def test_types_that_could_change_a_value_are_refused_with_both_files(tmp_path, first, second):
    for pair in ((first, second), (second, first)):
        with pytest.raises(InputError, match=r"column 'x' is .*a\.parquet and .*b\.parquet"):
            joined(tmp_path, *pair)


def test_columns_of_several_files_join_by_name(tmp_path):
    required = pa.field("a", pa.int64(), nullable=False)
    first = parquet(tmp_path, "a.parquet", pa.schema([required, ("b", pa.int8())]))
    second = parquet(tmp_path, "b.parquet", pa.schema([("b", pa.int8()), ("c", pa.null())]))
    schema = output_schema([first, second, jsonl(b="null", c="bool")])
    assert schema.names[:-NUM_OWN] == ["a", "b", "c"]
    assert schema.types[:3] == [pa.int64(), pa.int8(), pa.bool_()]
    assert schema.field("a").nullable


def test_a_json_column_of_nulls_is_text():
    assert output_schema([jsonl(a="null")]).field("a").type == pa.string()


def test_a_name_of_the_output_is_refused():
    with pytest.raises(InputError, match="'error'"):
        output_schema([jsonl(error="string")])


def test_a_name_twice_is_kept_in_one_file_and_refused_in_two(tmp_path):
    schema = pa.schema([("a", pa.int8()), ("a", pa.string())])
    source = parquet(tmp_path, "a.parquet", schema)
    assert output_schema([source]).names[:2] == ["a", "a"]
    with pytest.raises(InputError, match="more than one column 'a'"):
        output_schema([source, jsonl(a="null")])
