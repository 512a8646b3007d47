"""Sorted by density at every node, and split without giving up more sharing than allowed."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from blendrun.tree.annotate import Annotations, annotate
from blendrun.tree.density_order import LEAST_FRAC, sort_by_density, split_by_density
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


def exceptions(tree: PrefixTree, notes: Annotations) -> list[tuple[int, float, float]]:
    """Tokens, their compute and the seconds moved of all that lies on the wrong side, by search."""
    density, found = notes.node_density, []
    children = [[c for c in range(1, tree.num_nodes) if tree.parent[c] == v]
                for v in range(tree.num_nodes)]  # fmt: skip

    def next_to(node: int, step: int) -> int:
        while node != ROOT:
            siblings = children[tree.parent[node]]
            place = siblings.index(node) + step
            if 0 <= place < len(siblings):
                return siblings[place]
            node = int(tree.parent[node])
        return ROOT

    for node in range(1, tree.num_nodes):
        before, after = next_to(node, -1), next_to(node, 1)
        dense = [c for c in children[node] if before != ROOT and density[c] > density[before]]
        sparse = [
            c
            for c in children[node]
            if after != ROOT and density[c] < density[after] and c not in dense
        ]
        for run, neighbour in ((dense, before), (sparse, after)):
            if run:
                goal = tree.parent[neighbour]
                found.append(
                    (
                        int(tree.depth[node] - tree.depth[goal]),
                        float(COST.prefill_s(tree.depth[goal], tree.depth[node])),
                        abs(
                            sum(
                                notes.compute_s[c] - density[neighbour] * notes.memory_s[c]
                                for c in run
                            )
                        ),
                    )
                )
    return found


@given(jobs(), st.sampled_from([0.0, 0.5, 0.9]), st.sampled_from([1, 60]))
def test_what_stays_on_the_wrong_side_is_too_dear_or_not_worth_it(job, keep_frac, longer):
    prompts, output_len = job
    prompts = [[token for token in prompt for _ in range(longer)] for prompt in prompts]
    price = annotator(output_len)
    tree = tree_of(prompts)
    split = split_by_density(tree, price, keep_frac)
    notes = price(split)
    left = int((1 - keep_frac) * shared(tree)) - (shared(tree) - shared(split))
    assert left >= 0
    worth = [
        moved_s
        for repeated_len, repeated_s, moved_s in exceptions(split, notes)
        if repeated_len <= left and moved_s > repeated_s * (1 + 1e-9)
    ]
    assert sum(worth) < 2 * LEAST_FRAC * notes.compute_s[ROOT]


def long_answers_below_a_dense_prefix(answers: list[int]):
    """A chat with 2,000 tokens of output, questions under one long prefix, and `answers` there."""
    prefix = list(range(100, 1100))
    prompts = [[7, 8]] + [[*prefix, *[i] * 300] for i in range(60)]
    prompts += [[*prefix, 100 + i] for i in range(len(answers))]
    return prompts, [2000] + [1] * 60 + answers


def test_a_request_on_the_wrong_side_moves_to_where_it_belongs():
    prompts, output_len = long_answers_below_a_dense_prefix([4000])
    price = annotator(output_len)
    tree = tree_of(prompts)
    notes = price(tree)
    questions = tree.path(tree.leaf_node[61])[0]
    assert notes.request_density[61] < notes.request_density[0] < notes.node_density[questions]
    split = split_by_density(tree, price, keep_frac=0.5)
    assert split.leaf_order[-2:].tolist() == [0, 61]
    assert np.flatnonzero(split.parent[split.leaf_node] == ROOT).tolist() == [0, 61]
    assert shared(tree) - shared(split) == 1000  # the prefix is computed once more


def test_what_belongs_to_one_place_leaves_together_and_computes_the_prefix_once():
    prompts, output_len = long_answers_below_a_dense_prefix([3000, 2000, 2500])
    tree = tree_of(prompts)
    split = split_by_density(tree, annotator(output_len), keep_frac=0.5)
    assert split.leaf_order[-4:].tolist() == [0, 62, 63, 61]
    assert shared(tree) - shared(split) == 1000


def test_a_prefix_that_takes_longer_than_what_it_moves_is_not_computed_again():
    prompts, output_len = long_answers_below_a_dense_prefix([600])
    tree = tree_of(prompts)
    density = annotator(output_len)(tree).request_density
    assert density[61] < density[0]
    assert shared(split_by_density(tree, annotator(output_len), 0.0)) == shared(tree)


def test_keeping_all_sharing_splits_nothing():
    prompts, output_len = long_answers_below_a_dense_prefix([4000])
    tree = tree_of(prompts)
    split = split_by_density(tree, annotator(output_len), keep_frac=1.0)
    assert shared(split) == shared(tree)
    assert split.num_nodes == tree.num_nodes


def test_a_job_without_kv_reads_is_left_whole():
    tree = tree_of([[1, 2], [1, 3], [4]])
    assert shared(split_by_density(tree, annotator([1, 1, 1]), 0.0)) == shared(tree)


def test_no_requests_are_in_order():
    assert split_by_density(tree_of([]), annotator([]), 0.0).num_requests == 0
