"""Costs add up: over a subtree, and to the job's shared totals at the root."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendrun.tree.annotate import Annotations, annotate, density
from blendrun.tree.prefix_tree import PrefixTree
from tiny_jobs import cost_model, prompt_lists, tree_of

COST = cost_model()


@st.composite
def priced(draw: st.DrawFn) -> tuple[PrefixTree, np.ndarray, Annotations]:
    prompts = draw(prompt_lists())
    lengths = st.lists(st.integers(1, 500), min_size=len(prompts), max_size=len(prompts))
    output_len = np.array(draw(lengths), np.int32)
    tree = tree_of(prompts)
    return tree, output_len, annotate(tree, output_len, COST)


@given(priced())
def test_a_node_is_the_sum_of_its_requests(job):
    tree, _, notes = job
    for node in range(tree.num_nodes):
        below = tree.leaf_order[tree.first_leaf[node] : tree.last_leaf[node]]
        assert notes.compute_s[node] == pytest.approx(notes.request_compute_s[below].sum())
        assert notes.memory_s[node] == pytest.approx(notes.request_memory_s[below].sum())
        subtree = slice(node, tree.subtree_end[node])
        assert notes.unique_tokens[node] == tree.edge_len[subtree].sum()


@given(priced())
def test_the_root_computes_every_distinct_prefix_once(job):
    tree, output_len, notes = job
    edges_s = COST.prefill_s(tree.edge_start, tree.depth).sum()
    rest_s = (COST.head_s(1) + COST.decode_compute_s(tree.prompt_len, output_len)).sum()
    assert notes.compute_s[0] == pytest.approx(edges_s + rest_s)
    assert notes.memory_s[0] == pytest.approx(COST.memory_s(tree.prompt_len, output_len).sum())
    alone_s = COST.compute_s(tree.prompt_len, output_len).sum()
    assert notes.compute_s[0] <= alone_s * (1 + 1e-12)
    assert notes.unique_tokens[0] == tree.num_unique_tokens


def test_without_sharing_a_request_costs_what_it_costs_alone():
    prompts = [[i] * (10 * i + 1) for i in range(5)]
    output_len = np.array([9, 2, 3, 400, 5], np.int32)
    tree = tree_of(prompts)
    notes = annotate(tree, output_len, COST)
    alone_s = COST.compute_s(tree.prompt_len, output_len)
    np.testing.assert_allclose(notes.request_compute_s, alone_s)
    np.testing.assert_allclose(notes.request_density * notes.request_memory_s, alone_s)


def test_equal_prompts_share_their_prefill_evenly():
    output_len = np.ones(4, np.int32)
    one = annotate(tree_of([[3] * 100]), output_len[:1], COST)
    four = annotate(tree_of([[3] * 100] * 4), output_len, COST)
    prefill_s = COST.prefill_s(0, 100)
    np.testing.assert_allclose(
        four.request_compute_s, one.request_compute_s[0] - prefill_s + prefill_s / 4
    )


def test_a_job_that_reads_no_kv_is_infinitely_dense():
    notes = annotate(tree_of([[1, 2], [1, 3]]), np.ones(2, np.int32), COST)
    assert notes.root_density == np.inf
    assert np.isinf(notes.request_density).all()


def test_no_requests_cost_nothing():
    notes = annotate(tree_of([]), np.zeros(0, np.int32), COST)
    assert notes.compute_s.tolist() == [0.0]
    assert notes.unique_tokens.tolist() == [0]


def test_density_is_compute_over_memory_and_infinite_without_memory():
    assert density(np.array([2.0, 1.0, 0.0]), np.array([4.0, 0.0, 0.0])).tolist() == [
        0.5,
        np.inf,
        np.inf,
    ]
