"""A dense and a sparse side, each alike all along, over the same tree."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from blendrun.tree.annotate import annotate
from blendrun.tree.density_sides import dense_side_first
from blendrun.tree.prefix_tree import PrefixTree
from tiny_jobs import cost_model, prompt_lists, tree_of

COST = cost_model()


@given(prompt_lists(), st.data())
def test_only_the_order_of_children_changes(prompts, data):
    lengths = st.lists(st.integers(1, 900), min_size=len(prompts), max_size=len(prompts))
    output_len = np.array(data.draw(lengths), np.int32)
    tree = tree_of(prompts)
    made, num_dense = dense_side_first(tree, annotate(tree, output_len, COST))
    made.check_integrity()
    assert made.num_nodes == tree.num_nodes
    assert made.num_unique_tokens == tree.num_unique_tokens
    assert made.prompt_len.tolist() == tree.prompt_len.tolist()
    assert 0 <= num_dense <= len(prompts)


def questions_and_chats() -> tuple[PrefixTree, np.ndarray]:
    """400 long questions on one subject with short answers, and 160 chats with long ones."""
    rng = np.random.default_rng(3)
    prompts = [[9] * 50 + rng.integers(1000, 2000, 1500 + 2 * i).tolist() for i in range(400)]
    prompts += [[7, *rng.integers(1000, 2000, 20)] for _ in range(160)]
    output_len = [1 + i % 60 for i in range(400)] + [2000 + 20 * i for i in range(160)]
    return tree_of(prompts), np.array(output_len, np.int32)


def test_the_dense_side_comes_first():
    tree, output_len = questions_and_chats()
    made, num_dense = dense_side_first(tree, annotate(tree, output_len, COST))
    assert sorted(made.leaf_order[:num_dense]) == list(range(400))


def test_stretches_of_siblings_are_alike():
    tree, output_len = questions_and_chats()
    priced = annotate(tree, output_len, COST)
    made, num_dense = dense_side_first(tree, priced)
    for side in (made.leaf_order[:num_dense], made.leaf_order[num_dense:]):
        for column in (priced.request_compute_s, priced.request_memory_s):
            for part in np.split(side, 8):
                assert abs(column[part].mean() / column[side].mean() - 1) < 0.1


def test_without_kv_reads_everything_is_dense():
    tree = tree_of([[1, 2], [1, 3], [4]])
    assert dense_side_first(tree, annotate(tree, np.ones(3, np.int32), COST))[1] == 3
