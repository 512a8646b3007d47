"""Prompts of another job, found in a tree by content."""

import numpy as np
from hypothesis import given

from blendrun.tree.match import content_node, match_prompts
from tiny_jobs import flat, prompt_lists, tree_of


@given(mine=prompt_lists(), others=prompt_lists(min_size=0))
def test_each_prompt_reaches_its_deepest_node_and_equal_prompts_are_found(mine, others):
    tree = tree_of(mine)
    found = match_prompts(tree, *flat(mine), *flat(others))
    paths = [tuple(mine[tree.leaf_order[tree.first_leaf[v]]][: tree.depth[v]]) for v in
             range(tree.num_nodes)]  # fmt: skip
    at = content_node(tree)
    for prompt, node, is_whole in zip(others, found.node, found.is_whole, strict=True):
        fitting = [path for path in paths if path == tuple(prompt[: len(path)])]
        assert paths[node] == max(fitting, key=len)
        assert is_whole == (prompt in mine)
        if is_whole:
            assert {i for i, p in enumerate(mine) if p == prompt} == set(np.flatnonzero(at == node))
