"""Tokens that go from one step into the next without the CPU."""

import numpy as np
import pytest
import torch

from blendrun.engine.tokens_ahead import TokensAhead

DRAWN = torch.tensor([70, 71, 72])  # for requests 7, 3 and 5


@pytest.mark.parametrize(
    ("decodes", "expected"),
    [
        ([3, 5, 7], [71, 72, 70]),
        ([7], [70]),
        ([1, 5, 9], [100, 72, 102]),  # the first and the last drew nothing
        ([0, 1], [100, 101]),
    ],
)
def test_each_decode_has_the_draw_of_its_request(decodes: list[int], expected: list[int]):
    drew = np.array([7, 3, 5], np.int32)
    ahead = TokensAhead.of(np.array(decodes, np.int32), DRAWN, drew)
    assert ahead is not None
    known = torch.tensor([*range(100, 100 + len(decodes)), 200, 201])  # a chunk follows
    assert ahead.over(known).tolist() == [*expected, 200, 201]


@pytest.mark.parametrize(("decodes", "drew"), [([], [7]), ([7], [])])
def test_there_is_nothing_without_draws_or_decodes(decodes: list[int], drew: list[int]):
    columns = (np.array(values, np.int32) for values in (decodes, drew))
    decodes_of, drew_of = columns
    assert TokensAhead.of(decodes_of, DRAWN[: len(drew)], drew_of) is None
