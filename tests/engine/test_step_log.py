import dataclasses

import pyarrow as pa

from blendrun.engine.step_log import STEP_SCHEMA, StepLog, StepRecord


def record(step: int) -> StepRecord:
    values = {f.name: f.type(0) for f in dataclasses.fields(StepRecord)}
    return StepRecord(**{**values, "step": step, "step_s": step / 2})


def test_records_come_out_once_as_columns():
    log = StepLog()
    log.add(record(1))
    log.add(record(2))
    table = log.take()
    assert table.schema.equals(STEP_SCHEMA)
    assert table["step"].to_pylist() == [1, 2]
    assert table["step_s"].to_pylist() == [0.5, 1.0]
    assert log.take().num_rows == 0
    assert log.take().schema.equals(STEP_SCHEMA)


def test_counts_are_integers_and_seconds_are_floats():
    for field in STEP_SCHEMA:
        assert field.type == (pa.float64() if field.name.endswith("_s") else pa.int64())
