"""Rows in blocks of one size."""

import pytest
import torch

from blendrun.engine.row_blocks import in_blocks


@pytest.mark.parametrize("num_rows", [0, 1, 3, 4, 5, 8, 9])
def test_every_block_has_its_size_and_every_row_its_place(num_rows):
    seen = []

    def double(x, y):
        seen.append(len(x))
        return x * 2, y + 1

    x, y = torch.arange(num_rows * 2.0).view(num_rows, 2), torch.arange(num_rows)
    doubled, more = in_blocks(double, 4, x, y)
    assert torch.equal(doubled, x * 2)
    assert torch.equal(more, y + 1)
    assert seen == [4] * -(-num_rows // 4) or (num_rows, seen) == (0, [0])


def test_without_a_size_all_rows_come_at_once():
    (out,) = in_blocks(lambda x: (x + len(x),), None, torch.zeros(9))
    assert torch.equal(out, torch.full((9,), 9.0))
