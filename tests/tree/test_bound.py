"""The bound of a job whose attention reads shared prefixes once per step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendrun.tree.annotate import annotate
from blendrun.tree.bound import job_optimum, once_memory_s
from tiny_jobs import cost_model, prompt_lists, tree_of

COST = cost_model()
PER_TOKEN_S = COST.kv_bytes_per_token / COST.hardware.effective_bandwidth


def lengths(*output_len: int) -> np.ndarray:
    return np.array(output_len, np.int32)


def test_a_shared_prefix_is_read_as_often_as_its_longest_answer_takes():
    tree = tree_of([[1, 1, 1, 1, 2], [1, 1, 1, 1, 3, 3]])
    # 4 shared tokens in the 6 decodes of the longer answer; own tokens and answers by each
    own = 1 * 2 + 2 * 6 + (1 + 2) + (1 + 2 + 3 + 4 + 5 + 6)
    assert once_memory_s(tree, lengths(3, 7), COST) == pytest.approx((4 * 6 + own) * PER_TOKEN_S)


def test_without_sharing_it_is_the_reads_of_all_requests():
    tree = tree_of([[1, 2, 3], [2, 2], [3]])
    output_len = lengths(5, 1, 9)
    each = annotate(tree, output_len, COST).memory_s[0]
    assert once_memory_s(tree, output_len, COST) == pytest.approx(each)


@given(prompts=prompt_lists(), seed=st.integers(0, 99))
def test_it_is_never_above_what_all_requests_read_and_never_below_one_of_them(prompts, seed):
    tree = tree_of(prompts)
    output_len = np.random.default_rng(seed).integers(1, 20, tree.num_requests).astype(np.int32)
    priced = annotate(tree, output_len, COST)
    once = once_memory_s(tree, output_len, COST)
    assert once <= priced.memory_s[0] * (1 + 1e-9)
    assert once >= priced.request_memory_s.max() * (1 - 1e-9)


def test_both_bounds_are_told():
    tree = tree_of([[1] * 500 + [i] for i in range(50)])
    output_len = np.full(50, 100, np.int32)
    best = job_optimum(tree, output_len, annotate(tree, output_len, COST), COST)
    assert best.once_memory_s < best.memory_s / 3
    assert best.once_practical_s < best.practical_s
