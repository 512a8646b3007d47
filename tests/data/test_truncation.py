"""Prompts that are too long lose one end, and keep room for an answer."""

import numpy as np
import pytest

from blendrun.data.flat_tokens import FlatTokens
from blendrun.data.truncation import cut_prompts

BOS = 99


def cut(prompts, side, max_tokens=2, context_len=10, bos_id=None, score_len=0):
    flat = FlatTokens.of([np.array(ids, np.int32) for ids in prompts])
    limits = np.full(len(prompts), max_tokens, np.int32)
    scores = np.full(len(prompts), score_len, np.int64)
    made, rows = cut_prompts(flat, context_len, limits, scores, side, bos_id)
    parts = np.split(made.tokens, np.cumsum(made.lengths)[:-1])
    return [part.tolist() for part in parts], rows.tolist()


def test_only_prompts_that_fill_the_context_are_cut():
    prompts = [list(range(n)) for n in (9, 10, 0, 25)]
    made, rows = cut(prompts, "right")
    assert made == [prompts[0], prompts[1][:8], [], prompts[3][:8]]
    assert rows == [1, 3]
    made, _ = cut(prompts, "left")
    assert made == [prompts[0], prompts[1][-8:], [], prompts[3][-8:]]


@pytest.mark.parametrize(
    ("max_tokens", "kept"), [(0, 9), (1, 9), (4, 6), (5, 5), (6, 5), (2**31 - 1, 5)]
)
def test_a_long_answer_takes_no_more_than_half_of_the_context(max_tokens, kept):
    (made,), _ = cut([list(range(30))], "right", max_tokens)
    assert len(made) == kept


def test_a_bos_at_the_start_stays():
    assert cut([[BOS, *range(20)]], "left", bos_id=BOS)[0] == [[BOS, *range(13, 20)]]
    assert cut([[*range(20)]], "left", bos_id=BOS)[0] == [[*range(12, 20)]]
    assert cut([[BOS, 1, 2]], "left", 1, 2, BOS)[0] == [[BOS]]


def test_a_continuation_to_score_keeps_its_room_and_no_more():
    assert cut([[*range(7)], [*range(8)]], "left", score_len=3) == (
        [[*range(7)], [*range(1, 8)]],
        [1],
    )
    assert cut([[*range(20)]], "left", score_len=8)[0] == [[18, 19]]


def test_a_context_of_one_token_keeps_one():
    assert cut([[1, 2]], "right", 1, 1)[0] == [[1]]
