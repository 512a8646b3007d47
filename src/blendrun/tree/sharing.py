"""How much prefix sharing an order keeps with limited KV memory.

An estimate for the plan, from reuse distances; the run counts what it really keeps.
"""

import numba
import numpy as np

from blendrun.tree.prefix_tree import Int32, Int64, PrefixTree


def computed_prompt_tokens(
    tree: PrefixTree, sequence: Int32, output_len: Int32, capacity_tokens: int
) -> int:
    """Prompt tokens that a run in `sequence` computes, with a KV cache of `capacity_tokens`.

    A node is computed again when more than the cache's tokens came between two of its requests.

    Args:
        sequence: int32[N] requests in admission order.
        output_len: int32[N] expected output tokens.
    """
    return int(
        _replay(tree.parent, tree.edge_len, tree.leaf_node, sequence, output_len, capacity_tokens)
    )


@numba.njit(cache=True)
def _replay(
    parent: Int32, edge_len: Int32, leaf_node: Int32, sequence: Int32, output_len: Int32, cap: int
) -> int:
    last_used: Int64 = np.full(len(parent), -1, np.int64)
    clock, computed = 0, 0
    for request in sequence:
        node = leaf_node[request]
        now = clock
        while node != 0:
            if last_used[node] < 0 or now - last_used[node] > cap:
                computed += edge_len[node]
                clock += edge_len[node]
            last_used[node] = now
            node = parent[node]
        clock += output_len[request]
    return computed
