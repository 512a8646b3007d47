"""Expected output lengths and their origin."""

import numpy as np
import pyarrow as pa

from blendrun.schedule.lengths import COLUMN, MAX_TOKENS, PRIOR, expected_lengths
from tiny_jobs import tree_of

PRIOR_LEN = 256


def expect(max_tokens: int, stated: int | None = None, ignore_eos: bool = False):
    table = pa.table(
        {
            "max_tokens": pa.array([max_tokens], pa.int32()),
            "expected_len": pa.array([stated], pa.int32()),
            "ignore_eos": [ignore_eos],
        }
    )
    found = expected_lengths(table, PRIOR_LEN, tree_of([[1]]))
    assert found.tokens.dtype == np.int32
    assert 1 <= found.low[0] <= found.tokens[0] <= found.high[0] <= max_tokens
    return int(found.tokens[0]), found.origin_names()[0].as_py()


def test_a_stated_length_wins():
    assert expect(2000, stated=70) == (70, COLUMN)
    assert expect(2000, stated=70, ignore_eos=True) == (70, COLUMN)


def test_a_stated_length_is_cut_to_max_tokens():
    assert expect(50, stated=70) == (50, COLUMN)


def test_a_small_max_tokens_is_taken_as_the_length():
    assert expect(PRIOR_LEN) == (PRIOR_LEN, MAX_TOKENS)
    assert expect(3) == (3, MAX_TOKENS)


def test_a_large_max_tokens_is_only_a_limit():
    assert expect(PRIOR_LEN + 1) == (PRIOR_LEN, PRIOR)


def test_without_end_of_sequence_max_tokens_is_the_length():
    assert expect(2000, ignore_eos=True) == (2000, MAX_TOKENS)


def test_rows_are_judged_one_by_one():
    table = pa.table(
        {
            "max_tokens": pa.array([10, 1000, 1000], pa.int32()),
            "expected_len": pa.array([None, 4, None], pa.int32()),
            "ignore_eos": [False, False, False],
        }
    )
    found = expected_lengths(table, 99, tree_of([[1], [2], [3]]))
    assert found.tokens.tolist() == [10, 4, 99]
    assert found.origin_names().to_pylist() == [MAX_TOKENS, COLUMN, PRIOR]
    assert found.low.tolist() == [2, 4, 24]  # what is not stated may be far off
    assert found.high.tolist() == [10, 4, 396]
