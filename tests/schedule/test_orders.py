"""Every policy admits every request once."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendrun.schedule.orders import POLICIES, OrderSettings, order_requests
from blendrun.tree.annotate import annotate
from tiny_jobs import cost_model, prompt_lists, tree_of

COST = cost_model()


def order(
    policy, prompts, output_len, seed=0, keep_sharing=0.5, everything_fits=False, capacity=5000
):
    tree = tree_of(prompts)
    lengths = np.asarray(output_len, np.int32)
    settings = OrderSettings(seed, keep_sharing, everything_fits, capacity)
    return order_requests(policy, tree, lambda t: annotate(t, lengths, COST), settings)


@st.composite
def jobs(draw: st.DrawFn):
    prompts = draw(prompt_lists(max_size=20))
    n = len(prompts)
    return prompts, draw(st.lists(st.sampled_from([1, 30, 3000]), min_size=n, max_size=n))


@pytest.mark.parametrize("policy", POLICIES)
@given(job=jobs(), seed=st.integers(0, 5), fits=st.booleans())
def test_a_policy_gives_a_permutation_over_a_sound_tree(policy, job, seed, fits):
    prompts, output_len = job
    made = order(policy, prompts, output_len, seed, everything_fits=fits)
    assert sorted(made.sequence) == list(range(len(prompts)))
    assert made.sequence.dtype == np.int32
    made.tree.check_integrity()
    admission = {"blend": "two lists", "blendserve": "two-ended"}.get(policy, "one list")
    assert made.admission == admission


PROMPTS = [[i % 3, i % 5, i] for i in range(40)]


def test_random_depends_on_the_seed_and_on_nothing_else():
    first, again, other = (
        order("random", PROMPTS, [9] * 40, seed).sequence.tolist() for seed in (1, 1, 2)
    )
    assert first == again != other
    assert first != sorted(first)


@pytest.mark.parametrize("policy", ["blendserve", "dfs-sets", "arrival"])
def test_other_policies_ignore_the_seed(policy: str):
    one, two = (order(policy, PROMPTS, [9] * 40, seed).sequence.tolist() for seed in (1, 2))
    assert one == two


def test_arrival_is_the_files_order_and_dfs_sets_the_token_order():
    prompts = [[5, 1], [4], [5, 0], [4, 4]]
    assert order("arrival", prompts, [1] * 4).sequence.tolist() == [0, 1, 2, 3]
    assert order("dfs-sets", prompts, [1] * 4).sequence.tolist() == [1, 3, 2, 0]


def test_blendserve_puts_short_answers_before_long_ones():
    prompts = [[i] * 50 for i in range(6)]
    made = order("blendserve", prompts, [100, 1000, 2, 50, 5000, 10])
    assert made.sequence.tolist() == [2, 5, 3, 0, 1, 4]


def test_blendserve_splits_only_where_memory_is_short():
    prefix = list(range(100, 1100))
    prompts = [[*prefix, *[i] * 300] for i in range(60)] + [[*prefix, 60], [7, 8]]
    lengths = [1] * 60 + [4000, 2000]
    unique = tree_of(prompts).num_unique_tokens
    roomy = order("blendserve", prompts, lengths, everything_fits=True)
    tight = order("blendserve", prompts, lengths, everything_fits=False)
    assert roomy.tree.num_unique_tokens == unique
    assert tight.tree.num_unique_tokens == unique + 1000


def test_dfs_mixes_sets_and_keeps_subtrees_together():
    small, large = [1, 1, 1], [2, 2, 2]
    subjects = [[*large, s, s, s, s, s] for s in range(4)]
    prompts = [[*small, 10 + i, i] for i in range(30)]
    prompts += [[*subject, 50 + i] for subject in subjects for i in range(10)]
    sequence = order("dfs", prompts, [1] * 70, seed=1).sequence.tolist()
    of_set = [request >= 30 for request in sequence]
    assert sum(a != b for a, b in pairwise(of_set)) > 3  # not one by one
    for subject in range(4):
        places = [i for i, r in enumerate(sequence) if 30 + 10 * subject <= r < 40 + 10 * subject]
        assert places == list(range(places[0], places[0] + 10))
