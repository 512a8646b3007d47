"""One record per engine step, collected as columns and handed over as Arrow tables."""

from dataclasses import dataclass, fields

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class StepRecord:
    """Counts are of this step or at its end; `predicted_` seconds come from the cost model.

    They are work at the machine's best rates: what a step's size makes of it is not in them.
    """

    attempt: int
    rank: int  # data-parallel; 0 where there is one
    step: int
    start_s: float  # since generation of this attempt began
    step_s: float
    prefill_tokens: int
    decode_tokens: int
    output_tokens: int  # drawn
    running: int
    running_left: int  # of them, admitted from the left end
    waiting: int
    finished: int
    pages_used: int
    pages_idle: int  # of them, kept for waiting requests only
    num_pages: int
    preemptions: int  # of this step
    recomputed_tokens: int  # after preemption
    predicted_compute_s: float
    predicted_memory_s: float
    decide_s: float  # the batcher's compiled decision, …
    schedule_s: float  # … and all bookkeeping around the computation with it
    attention_s: float
    model_s: float
    sample_s: float


_TYPES = {int: pa.int64(), float: pa.float64()}
STEP_SCHEMA = pa.schema([(f.name, _TYPES[f.type]) for f in fields(StepRecord)])  # type: ignore[index]


class StepLog:
    """Records since the last `take`."""

    def __init__(self) -> None:
        self._records: list[StepRecord] = []

    def add(self, record: StepRecord) -> None:
        self._records.append(record)

    def take(self) -> pa.Table:
        """All records since the last call, with `STEP_SCHEMA`."""
        columns = {
            name: [getattr(record, name) for record in self._records] for name in STEP_SCHEMA.names
        }
        self._records = []
        return pa.table(columns, schema=STEP_SCHEMA)
