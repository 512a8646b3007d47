"""The prefixes that a workload's requests share: a small tree by construction."""

from dataclasses import dataclass

import numpy as np

from blendrun.tree.prefix_tree import ROOT, Int32


@dataclass(frozen=True, slots=True, eq=False)
class SharedPrefixes:
    """P prefixes, parents first; 0 is the root, the empty prefix and its own parent."""

    parent: Int32  # [P]
    depth: Int32  # [P] tokens from the start of the prompt; longer than the parent's

    def __len__(self) -> int:
        return len(self.parent)

    @property
    def num_children(self) -> Int32:
        """Prefixes right below each, [P]."""
        return np.bincount(self.parent[1:], minlength=len(self)).astype(np.int32)

    @property
    def place(self) -> Int32:
        """Which of its parent's children each is, from 0, [P]; 0 for the root."""
        places, seen = np.zeros(len(self), np.int32), np.zeros(len(self), np.int32)
        for prefix in range(1, len(self)):
            places[prefix] = seen[self.parent[prefix]]
            seen[self.parent[prefix]] += 1
        return places

    def compact(self, num_requests: Int32) -> tuple[Int32, Int32]:
        """The prefixes at which requests part, and for each prefix the one that stands for it.

        A prefix that only one request or one longer prefix goes on from is no node of a compact
        trie: its requests hang from the next one above.

        Args:
            num_requests: [P] requests right below each.

        Returns:
            kept [Q], ascending, the root first; stands_for int32[P], indices into kept.
        """
        branches = num_requests.copy()
        kept = np.ones(len(self), bool)
        for prefix in range(len(self) - 1, ROOT, -1):  # children before parents
            kept[prefix] = branches[prefix] > 1
            branches[self.parent[prefix]] += min(branches[prefix], 1)
        up = np.arange(len(self), dtype=np.int32)
        for prefix in range(1, len(self)):
            if not kept[prefix]:
                up[prefix] = up[self.parent[prefix]]
        index = np.cumsum(kept, dtype=np.int32) - 1
        return np.flatnonzero(kept).astype(np.int32), index[up]
