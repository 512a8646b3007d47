"""Means of output lengths by subtree, with ranges that hold what they say."""

import numpy as np
import pytest

from blendrun.tree.length_estimates import mean_length, nearest_means
from tiny_jobs import tree_of


def test_the_nearest_node_with_enough_outputs_is_taken():
    prompts = [[1, i] for i in range(20)] + [[2, i] for i in range(20)]
    tree = tree_of(prompts)
    one, two = (int(v) for v in np.flatnonzero(tree.parent == 0)[1:])
    node = np.array([one] * 16 + [two] * 15, np.int32)
    lengths = np.array([10] * 16 + [50] * 15, np.int32)
    mean, count = nearest_means(tree, node, lengths)
    assert (mean[one], count[one]) == (10, 16)
    whole = (16 * 10 + 15 * 50) / 31
    assert mean[0] == pytest.approx(whole)
    assert mean[two] == pytest.approx(whole)  # too few: with its sibling
    assert (mean[tree.leaf_node[:20]] == 10).all()


@pytest.mark.parametrize(("sigma", "n"), [(0.5, 16), (1.0, 16), (1.2, 60), (0.0, 16)])
def test_eighty_percent_intervals_hold_the_mean_that_often(sigma, n):
    rng = np.random.default_rng(0)
    held, tries = 0, 400
    for trial in range(tries):
        population = np.maximum(200 * rng.lognormal(0, sigma, 40 * n), 1).astype(np.int32)
        found = mean_length(rng.permutation(population)[:n], len(population), trial)
        assert found.low <= found.mean <= found.high
        held += found.low <= population.mean() <= found.high
    assert 0.70 <= held / tries <= (1.0 if sigma == 0 else 0.88)


def test_a_sample_of_everything_leaves_no_doubt():
    found = mean_length(np.array([3, 9, 30], np.int32), 3)
    assert found.low == found.mean == found.high == 14


def test_one_output_says_little_and_none_is_refused():
    found = mean_length(np.array([100], np.int32), 50)
    assert found.low <= 1
    assert found.high >= 400
    with pytest.raises(ValueError, match="no lengths"):
        mean_length(np.zeros(0, np.int32), 5)
