"""Errors to plant into the index arrays of the GPU path."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from blendrun.kernels.flashinfer import writes
from blendrun.kernels.paged.cascade import Cascade
from blendrun.kernels.paged.page_index import PageIndex
from blendrun.kernels.paged.step_split import StepSplit


def _next_page(index: PageIndex) -> PageIndex:
    indices = index.kv_indices.copy()
    indices[-1:] += 1
    return replace(index, kv_indices=indices)


def _pages_swapped(index: PageIndex) -> PageIndex:
    return replace(index, kv_indices=index.kv_indices[::-1].copy())


def _short_last_page(index: PageIndex) -> PageIndex:
    return replace(index, kv_last_page_len=index.kv_last_page_len - 1)


def _long_last_page(index: PageIndex) -> PageIndex:
    return replace(index, kv_last_page_len=index.kv_last_page_len + 1)


def _moved(bounds: np.ndarray) -> np.ndarray:
    moved = bounds.copy()
    moved[1:-1] += 1
    return moved


def _kv_indptr(index: PageIndex) -> PageIndex:
    return replace(index, kv_indptr=_moved(index.kv_indptr))


def _qo_indptr(index: PageIndex) -> PageIndex:
    return replace(index, qo_indptr=_moved(index.qo_indptr))


def _levels_swapped(cascade: Cascade) -> Cascade:
    """Rows of one level, pages of the other."""
    first, second, *rest = cascade.levels
    return replace(
        cascade,
        levels=(
            replace(second, qo_indptr=first.qo_indptr),
            replace(first, qo_indptr=second.qo_indptr),
            *rest,
        ),
    )


def _level_twice(cascade: Cascade) -> Cascade:
    return replace(cascade, levels=(cascade.levels[0], *cascade.levels[:-1]))


def _cascade_rows(split: StepSplit) -> StepSplit:
    return replace(split, cascade_rows=np.roll(split.cascade_rows, 1))


def _planted(owner: Any, change: Callable[[Any], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """Changes what `owner.of` makes."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        right = owner.of

        def wrong(*args: Any) -> Any:
            made = right(*args)
            return made if made is None else change(made)

        monkeypatch.setattr(owner, "of", wrong)

    return plant


def _slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each token's K and V go where its neighbour's belong."""
    right = writes.FlashInferWrites.__init__

    def wrong(self: Any, library: Any, token_idx: Any, slots: Any, *more: Any) -> None:
        right(self, library, token_idx, slots.roll(1), *more)

    monkeypatch.setattr(writes.FlashInferWrites, "__init__", wrong)


PLANTS = {
    "the last page off by one": _planted(PageIndex, _next_page),
    "pages in reverse": _planted(PageIndex, _pages_swapped),
    "last pages a token short": _planted(PageIndex, _short_last_page),
    "last pages a token long": _planted(PageIndex, _long_last_page),
    "kv_indptr off by one": _planted(PageIndex, _kv_indptr),
    "qo_indptr off by one": _planted(PageIndex, _qo_indptr),
    "levels swapped": _planted(Cascade, _levels_swapped),
    "a level twice": _planted(Cascade, _level_twice),
    "rows of the cascade rotated": _planted(StepSplit, _cascade_rows),
    "slots rotated": _slots,
}
