"""Index arrays of paged kernels; expected ones are FlashInfer's documented examples, by hand."""

from itertools import pairwise

import numpy as np
import pytest

from blendrun.kernels.cpu.shared_prefixes import SharedPrefixes, find_shared_prefixes
from blendrun.kernels.paged.cascade import Cascade
from blendrun.kernels.paged.page_index import PageIndex
from blendrun.kernels.paged.step_split import StepSplit

# of the wrappers' docstrings, 16 tokens to a page: (17 - 1) * 16 + 1 = 257 tokens, …
INDPTR = [0, 17, 29, 44, 48, 66, 100, 128]
LAST = [1, 7, 14, 4, 3, 1, 16]
CONTEXTS = [257, 183, 238, 52, 275, 529, 448]
PREFILL_ROWS = [33, 11, 11, 11, 11, 11, 12]  # qo_indptr [0, 33, 44, 55, 66, 77, 88, 100]


def int32(values: object) -> np.ndarray:
    return np.array(values, np.int32)


def tables(first_page: int = 0) -> np.ndarray:
    """Pages in order, sequence after sequence; behind a context a page that is nowhere."""
    table = np.full((7, 40), 10**6, np.int32)
    for row, (start, end) in enumerate(pairwise(INDPTR)):
        table[row, : end - start] = np.arange(first_page + start, first_page + end)
    return table


def as_lists(index: PageIndex) -> list[list[int]]:
    arrays = (index.qo_indptr, index.kv_indptr, index.kv_indices, index.kv_last_page_len)
    assert {array.dtype for array in arrays} == {np.dtype(np.int32)}
    return [array.tolist() for array in arrays]


def test_the_documented_prefill_arrays_come_out():
    zeros = int32([0] * 7)
    index = PageIndex.of(int32(PREFILL_ROWS), tables(), zeros, int32(CONTEXTS), 16)
    rows = [0, 33, 44, 55, 66, 77, 88, 100]
    assert as_lists(index) == [rows, INDPTR, list(range(128)), LAST]
    assert index.num_rows == 100


def test_the_documented_append_arrays_come_out():
    """45 = (3 - 1) * 16 + 13, 8, 25 = (2 - 1) * 16 + 9, 22 = (2 - 1) * 16 + 6."""
    table = int32([[0, 1, 2], [3, 9, 9], [4, 5, 9], [6, 7, 9]])
    context = int32([45, 8, 25, 22])
    index = PageIndex.of(context, table, int32([0] * 4), context, 16)
    assert as_lists(index)[1:] == [[0, 3, 4, 6, 8], list(range(8)), [13, 8, 9, 6]]


def test_an_entry_may_begin_behind_its_first_pages_or_read_nothing():
    table = int32([[5, 6, 7], [8, 9, 10]])
    index = PageIndex.of(int32([1, 2]), table, int32([4, 8]), int32([10, 8]), 4)
    assert as_lists(index) == [[0, 1, 3], [0, 2, 2], [6, 7], [2, 0]]


def test_the_documented_cascade_arrays_come_out():
    """Seven decodes that share 512 pages, then read the pages of the example above."""
    shared_pages = np.tile(np.arange(512, dtype=np.int32), (7, 1))
    table = np.concatenate([shared_pages, tables(512)], axis=1)
    order, group = np.arange(7, dtype=np.int32), np.zeros(7, np.int32)
    shared = SharedPrefixes(order, group, *map(int32, ([0], [7], [0], [512 * 16], [-1])))
    context = int32(CONTEXTS) + 512 * 16
    cascade = Cascade.of(shared, int32([1] * 7), context, table, 16)
    assert cascade is not None
    prefix, own = map(as_lists, cascade.levels)
    assert prefix == [[0, 7], [0, 512], list(range(512)), [16]]
    assert own == [list(range(8)), INDPTR, list(range(512, 640)), LAST]


# pages of four tokens; a and b share two prefixes, c one of them, d nothing
TABLE = int32([[1, 2, 3, 4], [1, 2, 3, 5], [1, 6, 7, 0], [8, 9, 0, 0]])
ROWS, CONTEXT = int32([1, 2, 1, 3]), int32([13, 15, 11, 7])


def nested(rows: np.ndarray = ROWS, context: np.ndarray = CONTEXT) -> SharedPrefixes:
    order = int32([3, 2, 0, 1])
    found = find_shared_prefixes(order, TABLE, rows, context, 4, 1, cost_len=0)
    assert found is not None
    return found


def test_prefixes_inside_of_prefixes_are_levels():
    cascade = Cascade.of(nested(), ROWS, CONTEXT, TABLE, 4)
    assert cascade is not None
    assert cascade.sequences.tolist() == [2, 0, 1]
    assert [as_lists(level) for level in cascade.levels] == [
        [[0, 4], [0, 1], [1], [4]],
        [[0, 1, 4], [0, 0, 2], [2, 3], [0, 4]],  # nothing for c
        [[0, 1, 2, 4], [0, 2, 3, 4], [6, 7, 4, 5], [3, 1, 3]],
    ]


def test_a_sequence_whose_rows_are_not_all_behind_its_prefix_stays_out():
    """Its prefix ends where its only row is: there would be nothing on the last level."""
    context = int32([12, 15, 11, 7])
    cascade = Cascade.of(nested(context=context), ROWS, context, TABLE, 4)
    assert cascade is not None
    assert cascade.sequences.tolist() == [2, 1]
    assert [as_lists(level)[0] for level in cascade.levels] == [[0, 3], [0, 1, 3], [0, 1, 3]]


def test_every_row_of_a_step_is_in_one_part():
    qo_indptr = int32([0, 1, 3, 4, 7])
    split = StepSplit.of(qo_indptr, CONTEXT, TABLE, 4, nested())
    assert split.cascade_rows.tolist() == [3, 0, 1, 2]
    assert split.decodes is None
    assert split.prefills is not None
    assert split.prefill_rows.tolist() == [4, 5, 6]
    assert as_lists(split.prefills) == [[0, 3], [0, 2], [8, 9], [3]]
    alone = StepSplit.of(qo_indptr, CONTEXT, TABLE, 4, None)
    assert alone.cascade is None
    assert alone.decode_rows.tolist() == [0, 3]
    assert alone.prefill_rows.tolist() == [1, 2, 4, 5, 6]


@pytest.mark.parametrize("seed", range(20))
def test_random_steps_are_covered_token_by_token(seed: int):
    """What entries read together is each context, once, in its pages."""
    random = np.random.default_rng(seed)
    context = random.integers(4, 60, 12).astype(np.int32)
    rows = np.minimum(random.integers(0, 4, 12), context).astype(np.int32)
    table = random.permutation(12 * 16).astype(np.int32).reshape(12, 16)
    for row in range(1, 12):  # begins as the one before, for a while
        depth = random.integers(0, 5)
        table[row, :depth] = table[row - 1, :depth]
    order = np.arange(12, dtype=np.int32)
    shared = find_shared_prefixes(order, table, rows, context, 4, 1, cost_len=0)
    qo_indptr = np.concatenate([[0], np.cumsum(rows)]).astype(np.int32)
    split = StepSplit.of(qo_indptr, context, table, 4, shared)
    read: dict[int, list[int]] = {}  # slots by row of q
    for index, of_q in (
        *((level, split.cascade_rows) for level in (split.cascade.levels if split.cascade else ())),
        (split.decodes, split.decode_rows),
        (split.prefills, split.prefill_rows),
    ):
        if index is None:
            continue
        bounds, pages, ids, last = as_lists(index)
        for entry, length in enumerate(last):
            mine = ids[pages[entry] : pages[entry + 1]]
            slots = [page * 4 + i for page in mine for i in range(4)]
            slots = slots[: len(slots) - 4 + length] if mine else []
            for row in of_q[bounds[entry] : bounds[entry + 1]].tolist():
                read.setdefault(row, []).extend(slots)
    for s in range(12):
        slots = [int(table[s, t // 4]) * 4 + t % 4 for t in range(context[s])]
        for row in range(qo_indptr[s], qo_indptr[s + 1]):
            assert read.pop(row) == slots
    assert read == {}
