"""Groups: the subtrees that a person would call the parts of a job."""

import numpy as np
from hypothesis import given

from blendrun.tree.groups import children, groups
from blendrun.tree.prefix_tree import ROOT, PrefixTree
from tiny_jobs import prompt_lists, tree_of


def group_sizes(prompts: list[list[int]]) -> list[tuple[int, int]]:
    """Requests and tokens to the end of the edge of each group, largest first."""
    tree = tree_of(prompts)
    nodes = groups(tree).nodes
    pairs = zip(tree.request_count[nodes].tolist(), tree.depth[nodes].tolist(), strict=True)
    return sorted(pairs, reverse=True)


def few_shot(subject: int, start: list[int], num_requests: int) -> list[list[int]]:
    """Prompts that share 20 tokens and go on with one of three words and a number."""
    return [[*start, *[100 + subject] * 20, i % 3, 500 + i] for i in range(num_requests)]


@given(prompt_lists())
def test_every_request_is_in_one_group(prompts: list[list[int]]):
    tree = tree_of(prompts)
    found = groups(tree)
    times = np.zeros(tree.num_requests, int)
    for node in found.nodes:
        times[tree.leaf_order[tree.first_leaf[node] : tree.last_leaf[node]]] += 1
    assert (times == 1).all()
    assert np.isin(tree.parent[found.nodes], found.opened).all()
    assert found.opened[0] == ROOT


def test_a_short_beginning_above_longer_ones_is_opened():
    prompts = [p for subject in range(4) for p in few_shot(subject, [7], 6)]
    assert group_sizes([*prompts, [8, 8]]) == [(6, 21)] * 4 + [(1, 2)]


def test_a_word_in_which_prompts_agree_by_chance_makes_no_group():
    prompts = few_shot(0, [], 9) + few_shot(1, [], 9)
    assert group_sizes(prompts) == [(9, 20), (9, 20)]


def test_one_family_among_many_others_does_not_open_their_system_prompt():
    chats = [[7, 7, 7, 1000 + i] for i in range(20)]
    assert group_sizes([*chats, *few_shot(0, [7, 7, 7], 6), [8, 8]]) == [(26, 3), (1, 2)]


def test_what_all_prompts_begin_with_is_opened_where_groups_lie_below_it():
    start = [7] * 50
    prompts = few_shot(0, start, 4) + few_shot(1, start, 4)
    assert group_sizes(prompts) == [(4, 70), (4, 70)]
    assert group_sizes([[*start, i] for i in range(5)]) == [(5, 50)]


def test_equal_prompts_are_one_group():
    assert group_sizes([[1, 2, 3]] * 5) == [(5, 3)]


def test_one_prompt_or_none():
    assert group_sizes([[1, 2]]) == [(1, 2)]
    assert group_sizes([]) == []


@given(prompt_lists())
def test_children_are_the_nodes_right_below(prompts: list[list[int]]):
    tree: PrefixTree = tree_of(prompts)
    for node in range(tree.num_nodes):
        expected = [v for v in range(1, tree.num_nodes) if tree.parent[v] == node]
        assert children(tree, node).tolist() == expected
