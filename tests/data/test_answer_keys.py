"""Answers by content: what is equal is counted, so that each has a key of its own."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendrun.data.answer_keys import KEYS_FILE, AnswerKeys, has_keys, read_keys
from blendrun.data.answers import answer_keys
from blendrun.errors import PlanError

Rows = list[tuple[int, int]]  # content and number of answers


def keys(rows: Rows) -> AnswerKeys:
    pairs = [(row, sample) for row, (_, n) in enumerate(rows) for sample in range(n)]
    row, sample = np.array(pairs, np.int64).reshape(-1, 2).T
    content = np.array([[rows[r][0]] * 16 for r in row], np.uint8).reshape(-1, 16)
    order = np.random.default_rng(0).permutation(len(row))
    return AnswerKeys.of(row[order], sample[order].astype(np.int32), content[order])


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
)
def test_an_order_of_rows_has_the_same_keys_and_draws_as_any_other(rows: Rows, random):
    mine, shuffled = keys(rows), keys(random.sample(rows, len(rows)))
    assert len(set(mine.content.to_pylist())) == len(mine.answer)
    place = shuffled.find(mine.content)
    assert sorted(place.tolist()) == list(range(len(mine.answer)))
    draws = shuffled.draw_keys(shuffled.answer)[place]
    assert draws.tolist() == mine.draw_keys(mine.answer).tolist()


def test_the_kth_of_equal_rows_has_the_kth_key():
    one, two = keys([(1, 1), (2, 2), (1, 1)]), keys([(3, 1), (1, 1), (1, 2), (1, 1)])
    assert one.row.tolist() == [0, 1, 1, 2]
    assert two.find(one.content).tolist() == [1, -1, -1, 2]
    assert one.find(two.content).tolist() == [-1, 0, 3, -1, -1]
    assert len(set(two.draw_keys(two.answer).tolist())) == 4  # of five: an answer's own is `sample`


def test_draws_are_asked_for_by_answer():
    all_of = keys([(1, 1), (2, 2), (1, 1)])
    some = answer_keys(np.array([2, 1]), np.array([0, 1], np.int32))
    assert all_of.draw_keys(some).tolist() == all_of.draw_keys(all_of.answer)[[3, 2]].tolist()
    assert keys([]).draw_keys(some[:0]).tolist() == []


def test_keys_are_kept_with_the_name_of_their_job(tmp_path: Path):
    assert not has_keys(tmp_path, "job")
    made = keys([(1, 2), (2, 1)])
    made.write(tmp_path, "job")
    assert has_keys(tmp_path, "job")
    assert not has_keys(tmp_path, "other")
    again = read_keys(tmp_path)
    assert again.answer.tolist() == made.answer.tolist()
    assert again.content.equals(made.content)
    keys([]).write(tmp_path, "none")
    assert read_keys(tmp_path).find(pa.chunked_array([made.content])).tolist() == [-1] * 3


def test_keys_that_cannot_be_read_are_told(tmp_path: Path):
    (tmp_path / KEYS_FILE).write_bytes(b"nothing")
    assert not has_keys(tmp_path, "job")
    with pytest.raises(PlanError, match=r"keys\.parquet"):
        read_keys(tmp_path)
