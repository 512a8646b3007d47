"""The tiles of an attention step: which query rows meet which part of which context.

Query heads of one KV head are packed into rows: packed row r of a sequence is head r % group of
its token r // group, so a decode of grouped heads fills a matrix instruction. Planned on the CPU,
once per step. Knows nothing of layers.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from blendrun.kernels.triton.page_index import DevicePageIndex, Int64

Int32 = npt.NDArray[np.int32]

FEW_ROWS = 16  # the fewest that a matrix instruction takes: decodes
SIZES = (FEW_ROWS, 64, 128)  # packed rows of a tile
MIN_CHUNK_LEN = 256  # tokens; shorter ones cost more merging than they gain

# columns of a tile; `attention_kernel.py` reads them in this order
COLUMNS = (
    "q_first",  # first row of q of the sequence
    "q_len",  # rows of q of the sequence
    "row",  # first packed row of the tile
    "page_first",  # first entry of kv_indices of the sequence
    "kv_len",  # tokens of the sequence
    "kv_begin",  # tokens of the sequence that this tile reads: from here
    "kv_end",  # to here
    "state",  # row of the first token's state of this chunk, where there are several
    "num_chunks",  # of the sequence
)


@dataclass(frozen=True, slots=True)
class TileShape:
    """How a kernel is built for tiles of `rows` packed rows."""

    rows: int
    tokens: int  # of the context that are scored at once
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True, eq=False)
class Tiles:
    """Of one step. All arrays int32."""

    by_rows: dict[int, Int32]  # tiles [n, 9] of so many packed rows each
    merged_rows: Int32  # [R] rows of q whose context is cut in chunks
    merged_indptr: Int32  # [R + 1] states of each
    num_states: int


def tile_shape(rows: int, head_dim: int, dtype: torch.dtype, cache_dtype: torch.dtype) -> TileShape:
    """For tiles of FEW_ROWS, 64 or 128 packed rows of q in `dtype`.

    Chosen from what compilers say, such that nothing spills; not from measurements.
    """
    if dtype == torch.float32:
        return TileShape(rows, 32, 8 if head_dim > 128 else 4, 2)
    width = max(64, 1 << (head_dim - 1).bit_length())
    is_narrow = cache_dtype.itemsize == 1
    if rows == FEW_ROWS:
        # five stages keep two blocks of K and V on their way, behind their page numbers
        return TileShape(rows, 8192 * (1 + is_narrow) // width, 4 if width <= 128 else 8, 5)
    if width > 128:
        return TileShape(rows, 32, 8, 4)
    return TileShape(rows, 128 if is_narrow and width == 64 else 64, 8, 4)


def most_rows(head_dim: int, dtype: torch.dtype, arch: int) -> int:
    """Rows of the largest tile that fits the registers; arch: compute capability, as 90."""
    if dtype == torch.float32:
        return FEW_ROWS
    return 64 if head_dim > 128 or arch < 90 else 128


def plan_tiles(
    index: DevicePageIndex,
    page_size: int,
    group: int,
    largest: int,
    chunk_len: int | None,
) -> Tiles:
    """Tiles of a step, those that read most first.

    Args:
        index: of the step.
        page_size: in tokens.
        group: query heads of one KV head.
        largest: `most_rows`.
        chunk_len: contexts are cut at multiples of it, in tokens; None: not cut. A row's result
            depends on its own sequence, where that is cut included, and on nothing else.

    Raises:
        ValueError: see `DevicePageIndex.kv_len`; chunk_len is not positive.
    """
    if chunk_len is not None and chunk_len < 1:
        raise ValueError("chunk_len must be positive")
    kv_len, q_begin = index.kv_len(page_size), index.q_begin()
    q_len = np.diff(q_begin)
    num_chunks = np.ones_like(kv_len)
    if chunk_len is not None:
        num_chunks = np.maximum(-(-kv_len // chunk_len), 1)
    cut = num_chunks > 1
    num_states = np.where(cut, q_len * num_chunks, 0)
    first_state = np.cumsum(num_states) - num_states
    sizes = np.array([size for size in SIZES if size <= largest])
    size_of = sizes[np.minimum(np.searchsorted(sizes, q_len * group), len(sizes) - 1)]
    columns = (q_begin[:-1], q_len, index.page_begin()[:-1], kv_len, first_state, num_chunks)
    by_rows = {
        size: _tiles(tuple(column[size_of == size] for column in columns), group, size, chunk_len)
        for size in np.unique(size_of[q_len > 0]).tolist()
    }
    per_row = np.repeat(num_chunks[cut], q_len[cut])
    merged = np.repeat(cut, q_len).nonzero()[0].astype(np.int32)
    indptr = np.concatenate([[0], np.cumsum(per_row)]).astype(np.int32)
    return Tiles(by_rows, merged, indptr, int(num_states.sum()))


def chunk_len_for(
    index: DevicePageIndex, page_size: int, group: int, num_programs: int
) -> int | None:
    """The shortest chunks with which no more than about `num_programs` programs run per KV head.

    None where the step has as many without cutting.
    """
    kv_len, q_len = index.kv_len(page_size), np.diff(index.q_begin())
    num_tiles = -(-q_len * group // np.where(q_len * group <= FEW_ROWS, FEW_ROWS, 128))
    if num_tiles.sum() >= num_programs or kv_len.max(initial=0) <= MIN_CHUNK_LEN:
        return None
    chunk_len = MIN_CHUNK_LEN
    while (num_tiles * np.maximum(-(-kv_len // chunk_len), 1)).sum() > num_programs:
        chunk_len *= 2
    return chunk_len


def _tiles(columns: tuple[Int64, ...], group: int, rows: int, chunk_len: int | None) -> Int32:
    """[n, 9] of the sequences in `columns`."""
    per_chunk = -(-columns[1] * group // rows)
    count = per_chunk * columns[5]
    q_first, q_len, page_first, kv_len, first_state, num_chunks = (
        np.repeat(column, count) for column in columns
    )
    number = np.arange(len(q_len)) - np.repeat(np.cumsum(count) - count, count)
    chunk, tile = number % num_chunks, number // num_chunks
    kv_begin = chunk * (chunk_len or 0)
    kv_end = kv_len if chunk_len is None else np.minimum(kv_begin + chunk_len, kv_len)
    span = (kv_begin, kv_end, first_state + chunk, num_chunks)
    made = np.stack((q_first, q_len, tile * rows, page_first, kv_len, *span), axis=1)
    longest_first = np.argsort(kv_begin - kv_end, kind="stable")
    return np.ascontiguousarray(made[longest_first], dtype=np.int32)
