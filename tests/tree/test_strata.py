"""Strata: large subtrees below the root and below set-wide system prompts."""

from blendrun.tree.strata import top_subtrees
from tiny_jobs import tree_of


def strata_of(prompts: list[list[int]], least: float) -> list[int]:
    stratum, nodes = top_subtrees(tree_of(prompts), least)
    assert sorted(set(stratum.tolist())) == list(range(len(nodes)))
    return stratum.tolist()


def same(stratum: list[int], *groups: range) -> bool:
    """Each group has one stratum, and no two groups the same."""
    of_group = [{stratum[i] for i in group} for group in groups]
    return all(len(s) == 1 for s in of_group) and len(set.union(*of_group)) == len(groups)


def test_children_of_the_root_are_apart_and_small_ones_pool():
    prompts = [[1, i, i] for i in range(10)] + [[2, i] for i in range(10)] + [[3], [4], [5]]
    assert same(strata_of(prompts, 0.2), range(10), range(10, 20), range(20, 23))


def test_subjects_below_a_set_wide_prompt_are_apart():
    prompts = [[7, s, s, i] for s in range(2) for i in range(10)] + [[7, 9, 1], [7, 8, 1]]
    assert same(strata_of(prompts, 0.2), range(10), range(10, 20), range(20, 22))


def test_a_beginning_that_all_prompts_have_counts_as_the_root():
    prompts = [[0, 0, 7, s, s, i] for s in range(2) for i in range(10)]
    prompts += [[0, 0, 8, i] for i in range(10)]
    assert same(strata_of(prompts, 0.2), range(10), range(10, 20), range(20, 30))


def test_one_request_is_one_stratum():
    assert strata_of([[1, 2, 3]], 0.005) == [0]
