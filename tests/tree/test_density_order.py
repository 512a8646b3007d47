"""Sorted by density at every node, and split without giving up more sharing than allowed."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from blendrun.tree.annotate import Annotations, annotate
from blendrun.tree.density_order import sort_by_density, split_by_density
from blendrun.tree.prefix_tree import ROOT, PrefixTree
from tiny_jobs import cost_model, prompt_lists, tree_of

COST = cost_model()


def annotator(output_len):
    return lambda tree: annotate(tree, np.asarray(output_len, np.int32), COST)


@st.composite
def jobs(draw: st.DrawFn):
    prompts = draw(prompt_lists(max_size=20))
    length = st.sampled_from([1, 2, 50, 5000])
    return prompts, draw(st.lists(length, min_size=len(prompts), max_size=len(prompts)))


def shared(tree: PrefixTree) -> int:
    return tree.num_prompt_tokens - tree.num_unique_tokens


def assert_children_fall_in_density(tree: PrefixTree, notes: Annotations) -> None:
    density = notes.node_density
    for node in range(tree.num_nodes):
        children = [c for c in range(1, tree.num_nodes) if tree.parent[c] == node]
        values = np.minimum(density[children], 1e9)
        assert (np.diff(values) <= 1e-9 * np.abs(values[:-1])).all()


@given(jobs())
def test_sorting_changes_nothing_but_the_order_of_children(job):
    prompts, output_len = job
    price = annotator(output_len)
    tree = tree_of(prompts)
    ordered = sort_by_density(tree, price(tree))
    ordered.check_integrity()
    assert_children_fall_in_density(ordered, price(ordered))
    assert ordered.num_nodes == tree.num_nodes
    assert ordered.num_unique_tokens == tree.num_unique_tokens
    assert ordered.prompt_len.tolist() == tree.prompt_len.tolist()


@given(jobs(), st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]))
@example(([[1] * 12] * 10 + [[2]], [1, 5000] * 5 + [1]), 0.0)
def test_splitting_keeps_every_request_and_the_share_of_sharing(job, keep_frac):
    prompts, output_len = job
    price = annotator(output_len)
    tree = tree_of(prompts)
    split = split_by_density(tree, price, keep_frac)
    split.check_integrity()
    assert sorted(split.leaf_order) == list(range(len(prompts)))
    assert split.prompt_len.tolist() == tree.prompt_len.tolist()
    assert shared(tree) >= shared(split) >= keep_frac * shared(tree) - 1e-9
    assert_children_fall_in_density(split, price(split))


def lone_answer_below_a_dense_prefix():
    """Ten questions under one long prefix, of which the last has a long answer, and a chat."""
    prefix = list(range(100, 1100))
    prompts = [[*prefix, i] for i in range(10)] + [[7, 8]]
    return prompts, [1] * 9 + [400, 2000]


def test_a_request_on_the_wrong_side_moves_to_where_it_belongs():
    prompts, output_len = lone_answer_below_a_dense_prefix()
    price = annotator(output_len)
    tree = tree_of(prompts)
    notes = price(tree)
    assert (
        notes.request_density[9]
        < notes.root_density
        < notes.node_density[tree.path(tree.leaf_node[9])[0]]
    )
    split = split_by_density(tree, price, keep_frac=0.5)
    at_root = np.flatnonzero(split.parent[split.leaf_node] == ROOT)
    assert at_root.tolist() == [9, 10]
    assert shared(tree) - shared(split) == 1000  # the prefix is computed once more


def test_keeping_all_sharing_splits_nothing():
    prompts, output_len = lone_answer_below_a_dense_prefix()
    tree = tree_of(prompts)
    split = split_by_density(tree, annotator(output_len), keep_frac=1.0)
    assert shared(split) == shared(tree)
    assert split.num_nodes == tree.num_nodes


def test_a_job_without_kv_reads_is_left_whole():
    tree = tree_of([[1, 2], [1, 3], [4]])
    assert shared(split_by_density(tree, annotator([1, 1, 1]), 0.0)) == shared(tree)
