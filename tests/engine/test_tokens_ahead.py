"""Tokens that go from one step into the next without the CPU."""

import numpy as np
import pytest
import torch

from blendrun.engine.tokens_ahead import TokensAhead
from blendrun.errors import BackendError

DRAWN, DREW = torch.tensor([70, 71, 72]), np.array([7, 3, 5], np.int32)


@pytest.mark.parametrize(("decodes", "expected"), [([3, 5, 7], [71, 72, 70]), ([7], [70])])
def test_each_decode_has_the_draw_of_its_request(decodes: list[int], expected: list[int]):
    ahead = TokensAhead.of(np.array(decodes, np.int32), DRAWN, DREW)
    assert ahead is not None
    known = torch.tensor([*[0] * len(decodes), 200, 201])  # a chunk follows
    assert ahead.over(known).tolist() == [*expected, 200, 201]


def test_a_step_without_decodes_takes_nothing():
    assert TokensAhead.of(np.zeros(0, np.int32), DRAWN, DREW) is None


@pytest.mark.parametrize("drew", [[7, 3, 5], []])
def test_a_decode_for_which_nothing_was_drawn_is_refused(drew: list[int]):
    with pytest.raises(BackendError, match="drew nothing"):
        TokensAhead.of(np.array([3, 9], np.int32), DRAWN[: len(drew)], np.array(drew, np.int32))
