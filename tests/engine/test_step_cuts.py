"""Where steps are cut: by what decodes read, and by the tokens of chunks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendrun.engine.step_cuts import StepShape, bounding_resource, cut_step


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def cuts(num_tokens: list[int], context_len: list[int], num_parts: int) -> list[int]:
    return cut_step(int32(*num_tokens), int32(*context_len), num_parts).tolist()


def test_two_parts_are_decodes_and_chunks():
    assert cuts([1, 1, 1, 9, 5], [90, 8, 7, 9, 70], 2) == [0, 3, 5]


def test_decodes_alone_are_cut_where_they_read_equally_much():
    assert cuts([1, 1, 1, 1], [90, 30, 30, 30], 2) == [0, 1, 4]
    assert cuts([1, 1, 1, 1, 1], [10, 10, 10, 10, 100], 2) == [0, 4, 5]


def test_chunks_alone_are_cut_by_their_tokens():
    assert cuts([30, 10, 10, 10], [1000, 10, 10, 10], 2) == [0, 1, 4]


def test_of_three_parts_two_are_decodes():
    assert cuts([1, 1, 5, 6], [9, 9, 9, 9], 3) == [0, 1, 2, 4]


def test_of_four_parts_two_are_chunks():
    assert cuts([1, 1, 1, 1, 5, 6], [9, 9, 9, 9, 5, 6], 4) == [0, 2, 4, 5, 6]


def test_one_token_of_a_prompt_behind_a_chunk_belongs_to_the_chunks():
    assert cuts([1, 5, 1], [9, 9, 9], 2) == [0, 1, 3]
    assert StepShape.of(int32(1, 5, 1), int32(9, 9, 9)) == StepShape(1, 6, 9)


@pytest.mark.parametrize(("num_tokens", "bounds"), [([1], [0, 1]), ([7], [0, 1]), ([], [0])])
def test_what_cannot_be_cut_stays_whole(num_tokens: list[int], bounds: list[int]):
    assert cuts(num_tokens, num_tokens, 2) == bounds


@given(
    decodes=st.lists(st.integers(1, 50), max_size=8),
    chunks=st.lists(st.tuples(st.integers(2, 20), st.integers(0, 30)), max_size=5),
    num_parts=st.integers(1, 5),
)
def test_parts_are_whole_sequences_and_none_is_empty(
    decodes: list[int], chunks: list[tuple[int, int]], num_parts: int
):
    num_tokens = int32(*[1] * len(decodes), *(tokens for tokens, _ in chunks))
    context_len = int32(*decodes, *(tokens + before for tokens, before in chunks))
    bounds = cut_step(num_tokens, context_len, num_parts)
    assert bounds[0] == 0
    assert bounds[-1] == len(num_tokens)
    assert (np.diff(bounds) > 0).all()
    assert len(bounds) - 1 <= num_parts
    if num_parts > 1 and decodes and chunks:
        assert len(decodes) in bounds


def test_attention_of_a_part_with_decodes_is_bounded_by_memory():
    assert bounding_resource(int32(1, 1)) == "memory"
    assert bounding_resource(int32(5, 7)) == "compute"
    assert bounding_resource(int32(1, 7)) == "memory"
