"""KV pages as numbers: which are free. Tensors belong to the backend."""

import numpy as np

from blendrun.errors import BackendError
from blendrun.tree.prefix_tree import Int32


class PagePool:
    """A stack of free page numbers; every page out of it has exactly one owner."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = np.arange(num_pages - 1, -1, -1, dtype=np.int32)
        self._num_free = num_pages

    @property
    def num_free(self) -> int:
        return self._num_free

    def take(self, count: int) -> Int32:
        """`count` page numbers, int32.

        Raises:
            BackendError: fewer are free; the caller promised to check.
        """
        if count > self._num_free:
            raise BackendError(f"{count} pages wanted, {self._num_free} free of {self.num_pages}")
        self._num_free -= count
        return self._free[self._num_free : self._num_free + count].copy()

    def give_back(self, pages: Int32) -> None:
        end = self._num_free + len(pages)
        if end > self.num_pages:
            raise BackendError(f"{end} free pages in a pool of {self.num_pages}")
        self._free[self._num_free : end] = pages
        self._num_free = end

    def free_pages(self) -> Int32:
        """The numbers of all free pages."""
        return self._free[: self._num_free]
