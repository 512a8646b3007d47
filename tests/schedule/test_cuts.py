"""The mixed sequence and its cuts, against all other ways to cut it."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendrun.cost.cost_model import CostModel
from blendrun.cost.hardware import HardwareProfile
from blendrun.cost.model_shape import ModelShape
from blendrun.schedule.cuts import SLACK, cut, mix
from blendrun.schedule.leaf_row import LeafRow
from tiny_jobs import prompt_lists, tree_of

SHAPE = ModelShape.load("llama-3.1-8b")
COSTS = [CostModel(SHAPE, HardwareProfile.load(name)) for name in ("a100-80gb-sxm", "paper-a100")]


def part_s(cost: CostModel, tree, output_len, requests) -> float:
    """Time of some requests, from the tree."""
    requests = np.array(requests, np.int32)
    below = tree.count_below(requests) > 0
    prompt_len, output_len = tree.prompt_len[requests], output_len[requests]
    compute_s = cost.prefill_s(tree.edge_start[below], tree.depth[below]).sum()
    compute_s += (cost.head_s(1) + cost.decode_compute_s(prompt_len, output_len)).sum()
    return float(cost.overlapped_s(compute_s, cost.memory_s(prompt_len, output_len).sum()))


@given(prompt_lists(max_size=9), st.integers(1, 4), st.data())
@pytest.mark.parametrize("cost", COSTS, ids=lambda cost: cost.hardware.name)
def test_no_other_cuts_give_a_shorter_longest_part(cost: CostModel, prompts, parts: int, data):
    prompts = [[token for token in prompt for _ in range(80)] for prompt in prompts]
    n = len(prompts)
    choice = st.sampled_from([1, 40, 700])
    output_len = np.array(data.draw(st.lists(choice, min_size=n, max_size=n)), np.int32)
    tree = tree_of(prompts)
    row = LeafRow.of(tree, data.draw(st.integers(0, n)))
    mixed = row.mixed(tree.prompt_len, output_len, cost)
    in_turn = row.requests[row.turns(mixed.dense_before)].tolist()
    ends, compute_s = cut(mixed, parts)
    assert ends[0] == 0
    assert ends[-1] == n
    found = [in_turn[ends[i] : ends[i + 1]] for i in range(parts)]

    @cache
    def shortest(begin: int, left: int) -> float:
        """The longest of `left` parts that do in_turn[begin:], at best."""
        if left == 1:
            return part_s(cost, tree, output_len, in_turn[begin:])
        return min(
            max(part_s(cost, tree, output_len, in_turn[begin:end]), shortest(end, left - 1))
            for end in range(begin, n + 1)
        )

    longest = max(part_s(cost, tree, output_len, part) for part in found)
    assert longest <= shortest(0, parts) * (1 + 2 * SLACK) * (1 + 1e-9)
    for part, seconds in zip(found, compute_s, strict=True):
        memory_s = cost.memory_s(tree.prompt_len[part], output_len[part]).sum()
        expected = part_s(cost, tree, output_len, part)
        assert cost.overlapped_s(seconds, memory_s) == pytest.approx(expected)


def test_the_sequence_takes_the_side_that_is_missing():
    lean = np.array([1.0, 1.0, 1.0, 1.0, -2.0, -2.0])
    assert mix(lean, 4).tolist() == [0, 1, 1, 2, 3, 3, 4]


@pytest.mark.parametrize("num_dense", [0, 3])
def test_one_side_alone_is_taken_as_it_is(num_dense: int):
    assert mix(np.ones(3), num_dense).tolist() == [min(k, num_dense) for k in range(4)]


def test_a_cut_goes_where_nothing_is_repeated():
    # half of the time is inside of the first of two groups, two requests before its end
    prompts = [
        [group] * 5 + [i] * 50 for group, size in enumerate((1002, 998)) for i in range(size)
    ]
    tree = tree_of(prompts)
    row = LeafRow.of(tree, len(prompts))
    ends, _ = cut(row.mixed(tree.prompt_len, np.ones(len(prompts), np.int32), COSTS[0]), 2)
    assert ends.tolist() == [0, 1002, 2000]
