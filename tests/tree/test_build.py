"""The built tree against a trie of plain Python sets."""

import dataclasses

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from blendrun.errors import PlanError
from blendrun.tree.build import arrange, topology_of
from blendrun.tree.prefix_tree import ROOT, PrefixTree
from tiny_jobs import prompt_lists, tree_of

CHAIN = [[1] * n for n in range(1, 60)]


def prefixes(prompts: list[list[int]]) -> set[tuple[int, ...]]:
    """Every prefix that occurs, the empty one left out."""
    return {tuple(p[:n]) for p in prompts for n in range(1, len(p) + 1)}


def below(tree: PrefixTree, node: int) -> np.ndarray:
    return tree.leaf_order[tree.first_leaf[node] : tree.last_leaf[node]]


@given(prompt_lists())
@example([[5]])
@example([[1, 2, 3]] * 6)
@example(CHAIN)
@example(CHAIN[::-1])
@example([[i] for i in range(20)])
@example([[0, 2**31 - 1], [0, 2**31 - 1], [2**31 - 1]])
def test_tree_holds_each_distinct_prefix_once(prompts: list[list[int]]):
    tree = tree_of(prompts)
    tree.check_integrity()
    assert tree.num_unique_tokens == len(prefixes(prompts))
    assert tree.num_prompt_tokens == sum(map(len, prompts))
    assert tree.num_requests == len(prompts)
    assert tree.prompt_len.tolist() == [len(p) for p in prompts]


@given(prompt_lists())
@example([[1, 2], [1], [1, 2], [1]])
def test_leaves_come_in_token_order_equal_prompts_by_number(prompts: list[list[int]]):
    assert tree_of(prompts).leaf_order.tolist() == sorted(
        range(len(prompts)), key=lambda i: (prompts[i], i)
    )


@given(prompt_lists())
@example(CHAIN)
def test_requests_below_a_node_share_its_whole_path_and_siblings_part_there(
    prompts: list[list[int]],
):
    tree = tree_of(prompts)
    for node in range(tree.num_nodes):
        depth = tree.depth[node]
        paths = {tuple(prompts[r][:depth]) for r in below(tree, node)}
        assert len(paths) == 1
        children = [
            int(c) for c in range(1, tree.num_nodes) if tree.parent[c] == node and c != node
        ]
        first = [prompts[below(tree, c)[0]][depth] for c in children if tree.depth[c] > depth]
        assert len(set(first)) == len(first)
        if children and node != ROOT:
            assert len(children) > 1  # compact: no node with a single child


@given(prompt_lists())
def test_path_leads_from_below_the_root_to_the_leaf(prompts: list[list[int]]):
    tree = tree_of(prompts)
    for request, leaf in enumerate(tree.leaf_node):
        path = tree.path(int(leaf))
        assert path[-1] == leaf
        assert ROOT not in path
        assert tree.parent[path[0]] == ROOT
        assert sum(int(tree.edge_len[node]) for node in path) == len(prompts[request])


def test_a_tree_without_requests_is_its_root():
    tree = tree_of([])
    tree.check_integrity()
    assert (tree.num_nodes, tree.num_requests, tree.num_unique_tokens) == (1, 0, 0)
    assert tree.prompt_len.tolist() == []


@given(prompt_lists())
@example(CHAIN)
@example([[1, 2, 3]] * 6)
def test_topology_and_arrange_are_inverse(prompts: list[list[int]]):
    tree = tree_of(prompts)
    topology, node_of = topology_of(tree)
    rank = np.empty(tree.num_nodes)
    rank[node_of] = np.arange(tree.num_nodes)  # as they lie
    again = arrange(topology, rank)
    for field in dataclasses.fields(PrefixTree):
        np.testing.assert_array_equal(getattr(again, field.name), getattr(tree, field.name))


@given(prompt_lists(), st.randoms(use_true_random=False))
def test_arrange_in_any_order_keeps_the_tree(prompts: list[list[int]], random):
    tree = tree_of(prompts)
    topology, _ = topology_of(tree)
    rank = np.array([random.random() for _ in range(tree.num_nodes)])
    again = arrange(topology, rank)
    again.check_integrity()
    assert again.prompt_len.tolist() == tree.prompt_len.tolist()
    assert again.num_unique_tokens == tree.num_unique_tokens
    groups = {frozenset(below(tree, n).tolist()) for n in range(tree.num_nodes)}
    assert {frozenset(below(again, n).tolist()) for n in range(again.num_nodes)} == groups


#          root 0, [1 2] 1, its leaves 2 and 3, and the leaf [7] 4
PLANTED = [
    ("the root starts at token 0", "depth", 0, 1),
    ("parents come before children", "parent", 2, 3),
    ("depths do not shrink downwards", "depth", 2, 1),
    ("a subtree lies inside its parent's", "subtree_end", 3, 5),
    ("a leaf range lies inside its parent's", "last_leaf", 3, 3),
    ("a leaf range lies inside its parent's", "first_leaf", 1, -1),
    ("the root covers everything", "subtree_end", 0, 4),
    ("every request is one leaf", "leaf_order", 0, 1),
    ("leaves hold one request", "first_leaf", 2, 1),
    ("leaf order and leaf nodes agree", "leaf_node", 0, 3),
    ("inner nodes have children", "last_leaf", 1, 0),
]


@pytest.mark.parametrize(("rule", "column", "at", "value"), PLANTED)
def test_planted_breakage_is_found_by_its_rule(rule: str, column: str, at: int, value: int):
    tree = tree_of([[1, 2, 3], [1, 2, 4], [7]])
    tree.check_integrity()
    assert tree.num_nodes == 5
    broken = getattr(tree, column).copy()
    assert broken[at] != value
    broken[at] = value
    with pytest.raises(PlanError, match="prefix tree is broken") as caught:
        dataclasses.replace(tree, **{column: broken}).check_integrity()
    assert rule in caught.value.message
    assert "5 nodes, 3 requests" in caught.value.message


@given(prompt_lists(), st.integers(1, 9))
def test_whole_pages_are_all_that_is_shared(prompts: list[list[int]], page_size: int):
    exact = tree_of(prompts)
    tree = exact.in_whole_pages(page_size)
    tree.check_integrity()
    inner = np.setdiff1d(np.arange(tree.num_nodes), tree.leaf_node)
    assert (tree.depth[inner] % page_size == 0).all()
    assert (exact.depth[inner] - tree.depth[inner] < page_size).all()
    assert (tree.prompt_len == exact.prompt_len).all()
    assert (exact.in_whole_pages(1).depth == exact.depth).all()
