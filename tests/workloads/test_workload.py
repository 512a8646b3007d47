"""The workload's own tree against the one built from its tokens."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from blendrun.tree.prefix_tree import PrefixTree
from blendrun.workloads.drawn import Drawn
from blendrun.workloads.sets import LognormalSet, SubjectSet
from blendrun.workloads.workload import Workload
from tiny_jobs import tree_of
from tiny_workloads import drawn, paper_cost, prompts_of, small_sets, workload_of


def nodes(tree: PrefixTree) -> set[tuple[int, frozenset[int]]]:
    """Every node as its depth and the requests below it."""
    return {
        (int(tree.depth[v]), frozenset(tree.leaf_order[tree.first_leaf[v] : tree.last_leaf[v]]))
        for v in range(tree.num_nodes)
    }


def assert_same_tree(workload: Workload) -> None:
    ours, of_tokens = workload.tree(), tree_of(prompts_of(workload))
    ours.check_integrity()
    assert ours.num_nodes == of_tokens.num_nodes
    assert nodes(ours) == nodes(of_tokens)
    assert ours.num_unique_tokens == of_tokens.num_unique_tokens
    assert ours.prompt_len.tolist() == workload.prompt_len.tolist()


@given(
    st.lists(small_sets(), min_size=1, max_size=3).filter(lambda s: any(map(len, s))),
    st.integers(20, 23),
)
@example([drawn([1])], 20)
@example([drawn([1, 1], system_len=0, group_depth=[0])], 20)
@example([drawn([1, 2, 1], [0, 0, 1], [6, 9]), drawn([1])], 20)
def test_tree_is_the_one_of_the_tokens(sets: list[Drawn], vocab_size: int):
    assert_same_tree(workload_of(*sets, vocab_size=vocab_size))


def test_tree_is_the_one_of_the_tokens_for_the_sets_of_the_paper():
    mmlu = SubjectSet("mmlu", num_subjects=9).draw(120, 0)
    assert_same_tree(workload_of(mmlu, LognormalSet("openvid").draw(60, 0), vocab_size=100))


def test_children_come_by_first_arrival():
    tree = workload_of(*(drawn([2] * 9) for _ in range(3))).tree()
    children = [v for v in range(1, tree.num_nodes) if tree.parent[v] == 0]
    firsts = [int(tree.leaf_order[tree.first_leaf[v] : tree.last_leaf[v]][0]) for v in children]
    assert firsts == sorted(firsts)
    for v in children:
        below = tree.leaf_order[tree.first_leaf[v] : tree.last_leaf[v]]
        assert below.tolist() == sorted(below)


def test_requests_arrive_mixed_and_keep_their_columns_together():
    a = drawn(list(range(1, 41)), output_len=list(range(101, 141)))
    b = drawn(list(range(201, 221)), output_len=list(range(301, 321)), system_len=4)
    workload = workload_of(a, b)
    assert workload.num_requests == 60
    assert workload.set_idx.tolist() != sorted(workload.set_idx)
    for request in range(60):
        source = (a, b)[workload.set_idx[request]]
        number = workload.number[request]
        assert workload.own_len[request] == source.own_len[number]
        assert workload.output_len[request] == source.output_len[number]
    numbers = workload.number[workload.set_idx == 0]
    assert sorted(numbers) == list(range(40))


def test_the_order_of_arrival_depends_on_the_seed():
    a = drawn([1] * 30)
    first, again, other = (workload_of(a, seed=seed) for seed in (1, 1, 2))
    assert first.number.tolist() == again.number.tolist() != other.number.tolist()


@pytest.mark.parametrize(
    ("longest", "limit"),
    [(1, 1), (2, 2), (3, 4), (6, 8), (512, 512), (513, 1024), (65_536, 65_536)],
)
def test_max_tokens_is_the_next_power_of_two_of_the_sets_longest_output(longest: int, limit: int):
    workload = workload_of(drawn([1, 1], output_len=[1, longest]), drawn([1], output_len=[9]))
    assert set(workload.max_tokens[workload.set_idx == 0]) == {limit}
    assert set(workload.max_tokens[workload.set_idx == 1]) == {16}


def test_only_leaves_the_requests_of_one_set():
    workload = workload_of(drawn([1, 2, 3]), drawn([4, 5]), drawn([]))
    assert sorted(workload.only(1).own_len) == [4, 5]
    assert workload.only(1).tree().num_requests == 2
    assert workload.only(2).num_requests == 0
    assert workload.only(2).totals(paper_cost()).compute_s == 0


def test_columns_are_int32():
    workload = workload_of(drawn([1, 2, 3], [0, 1, 0], [5, 6]))
    for name in ("set_idx", "number", "prefix", "own_len", "output_len", "max_tokens"):
        assert getattr(workload, name).dtype == np.int32, name
    assert workload.prompt_len.dtype == np.int32
