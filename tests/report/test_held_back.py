"""What kept waiting requests out of a step."""

import numpy as np
import pyarrow as pa
import pytest

from blendrun.engine.step_log import STEP_SCHEMA
from blendrun.report.held_back import Held, Limits, held_back
from blendrun.report.priced_steps import price_steps
from tiny_jobs import cost_model

LIMITS = Limits(max_seqs=8, chunk_size=100, request_pages=10.0, growth_pages=2.0)
STEP = {"waiting": 5, "running": 4, "decode_tokens": 4, "pages_used": 50, "num_pages": 100}


def held(limits: Limits = LIMITS, **changes: int) -> Held:
    columns = {name: np.zeros(1) for name in STEP_SCHEMA.names}
    columns |= {name: np.full(1, value) for name, value in {**STEP, **changes}.items()}
    columns["attempt"] = np.ones(1)
    steps = price_steps(pa.table(columns).cast(STEP_SCHEMA), cost_model(), overlaps=True)
    return Held(int(held_back(steps, limits)[0]))


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({}, Held.ORDER),
        ({"waiting": 0, "pages_used": 100}, Held.NOTHING),
        ({"running": 8, "pages_used": 100}, Held.MAX_SEQS),
        ({"prefill_tokens": 96, "pages_used": 100}, Held.CHUNK),
        ({"pages_used": 90}, Held.PAGES),
        ({"pages_used": 83}, Held.PAGES),  # 17 free; 4 grow by 2 each, and one needs 10
        ({"pages_used": 82}, Held.ORDER),
        ({"pages_used": 90, "pages_idle": 8}, Held.ORDER),  # pages that can be had
    ],
)
def test_the_first_limit_that_holds_is_the_cause(changes: dict[str, int], cause: Held):
    assert held(**changes) is cause


def test_an_engine_that_tells_no_limits_is_read():
    assert held(Limits(None, None, 10.0, 2.0), running=8, pages_used=95) is Held.PAGES


def test_lengths_of_answers_make_the_need():
    environment = {"page_size": 4, "max_seqs": 2, "chunk_size": 3}
    limits = Limits.of(environment, np.array([8, 8]), np.array([4, 12]))
    assert limits.request_pages == (8 + 8) / 4 + 1
    assert limits.growth_pages == (4 * 4 + 12 * 12) / (4 + 12) / 2 / 4
    empty = Limits.of(environment, np.zeros(0, np.int64), np.zeros(0, np.int64))
    assert (empty.request_pages, empty.growth_pages) == (1, 0)
