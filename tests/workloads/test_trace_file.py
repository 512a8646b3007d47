from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blendrun.errors import InputError
from blendrun.workloads.trace_file import TraceFile, read_traces
from tiny_workloads import write_trace


def test_rows_of_all_files_come_with_their_share_of_the_weight(tmp_path: Path):
    a = write_trace(tmp_path / "a.parquet", [(1, 2), (3, 4)])
    b = write_trace(tmp_path / "b.parquet", [(5, 6)])
    lengths = read_traces([TraceFile(a, 4), TraceFile(b, 1)])
    assert lengths.input_len.tolist() == [1, 3, 5]
    assert lengths.output_len.tolist() == [2, 4, 6]
    assert lengths.upto.tolist() == [2, 4, 5]


def test_a_length_below_one_counts_as_one(tmp_path: Path):
    lengths = read_traces([TraceFile(write_trace(tmp_path / "a.parquet", [(0, 0), (5, 0)]))])
    assert lengths.input_len.tolist() == [1, 5]
    assert lengths.output_len.tolist() == [1, 1]


def test_columns_may_come_in_any_order_and_width_among_others(tmp_path: Path):
    path = tmp_path / "a.parquet"
    columns = {"output_tokens": pa.array([7], pa.uint16()), "when": ["x"], "input_tokens": [9]}
    pq.write_table(pa.table(columns), path)
    lengths = read_traces([TraceFile(path)])
    assert (lengths.input_len.tolist(), lengths.output_len.tolist()) == ([9], [7])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"input_tokens": [1]}, "no column 'output_tokens'"),
        ({"input_tokens": [1.5], "output_tokens": [1]}, "no column 'input_tokens' of whole"),
        ({"input_tokens": [1, None], "output_tokens": [1, 2]}, "'input_tokens' has nulls"),
        (
            {name: pa.array([], pa.int32()) for name in ("input_tokens", "output_tokens")},
            "has no rows",
        ),
    ],
)
def test_a_file_that_is_no_trace_is_refused(columns: dict, message: str, tmp_path: Path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), path)
    with pytest.raises(InputError, match=message):
        read_traces([TraceFile(path)])


def test_a_missing_or_damaged_file_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"no length trace .*none\.parquet"):
        read_traces([TraceFile(tmp_path / "none.parquet")])
    (tmp_path / "bad.parquet").write_text("no")
    with pytest.raises(InputError, match="as Parquet"):
        read_traces([TraceFile(tmp_path / "bad.parquet")])
