"""Tiles of a step: every row meets every token of its context once, in as few states as needed."""

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed; it exists for Linux only")

from blendrun.kernels.triton.attention_tiles import (
    COLUMNS,
    FEW_ROWS,
    Tiles,
    chunk_len_for,
    most_rows,
    plan_tiles,
)
from blendrun.kernels.triton.page_index import DevicePageIndex
from tiny_nhd_pages import page_index

PAGE_SIZE = 8
LENS = ((1, 100), (3, 7), (0, 50), (40, 90), (200, 200), (1, 0), (0, 0), (16, 33), (5, 64))


def _index(lens: tuple[tuple[int, int], ...]) -> DevicePageIndex:
    pages = [list(range(-(-context // PAGE_SIZE))) for _, context in lens]
    last = [(context - 1) % PAGE_SIZE + 1 if context else 0 for _, context in lens]
    return page_index([rows for rows, _ in lens], pages, last)


def _by_name(tiles: np.ndarray) -> list[dict[str, int]]:
    return [dict(zip(COLUMNS, row, strict=True)) for row in tiles.tolist()]


def _rows_of(tiles: Tiles) -> list[tuple[int, dict[str, int]]]:
    return [(rows, t) for rows, own in tiles.by_rows.items() for t in _by_name(own)]


@pytest.mark.parametrize("group", [1, 3, 4, 7])
@pytest.mark.parametrize("chunk_len", [None, 32, 50])
def test_each_row_meets_each_token_once(group: int, chunk_len: int | None) -> None:
    tiles = plan_tiles(_index(LENS), PAGE_SIZE, group, 128, chunk_len)
    num_rows = sum(rows for rows, _ in LENS)
    met = np.zeros((num_rows, group, 200), np.int64)
    states = np.zeros(tiles.num_states, np.int64)
    for block, tile in _rows_of(tiles):
        for row in range(tile["row"], min(tile["row"] + block, tile["q_len"] * group)):
            token = row // group
            met[tile["q_first"] + token, row % group, tile["kv_begin"] : tile["kv_end"]] += 1
            if tile["num_chunks"] > 1:
                states[tile["state"] + token * tile["num_chunks"]] += 1
    contexts = np.repeat([context for _, context in LENS], [rows for rows, _ in LENS])
    assert (met == (np.arange(200) < contexts[:, None])[:, None]).all()
    assert (states == group).all()
    is_cut = contexts > (chunk_len or 200)
    assert tiles.merged_rows.tolist() == np.flatnonzero(is_cut).tolist()
    chunks = -(-contexts[is_cut] // (chunk_len or 1))
    assert np.diff(tiles.merged_indptr).tolist() == chunks.tolist()


def test_what_reads_most_comes_first() -> None:
    tiles = plan_tiles(_index(LENS), PAGE_SIZE, 4, 128, None)
    assert len(tiles.by_rows) > 1
    for part in tiles.by_rows.values():
        lens = [tile["kv_end"] - tile["kv_begin"] for tile in _by_name(part)]
        assert lens == sorted(lens, reverse=True)


def test_tiles_are_as_large_as_rows_and_registers_allow() -> None:
    index = _index(((1, 9), (100, 100), (4, 9), (0, 3), (5, 9), (16, 16), (17, 17)))
    for largest, counts in ((128, {16: 2, 64: 2, 128: 5}), (64, {16: 2, 64: 11}), (16, {16: 38})):
        tiles = plan_tiles(index, PAGE_SIZE, 4, largest, None)
        assert {rows: len(own) for rows, own in tiles.by_rows.items()} == counts
    assert most_rows(128, torch.bfloat16, 90) == 128
    assert most_rows(128, torch.bfloat16, 80) == most_rows(256, torch.bfloat16, 90) == 64
    assert most_rows(128, torch.float32, 90) == FEW_ROWS


def test_contexts_are_cut_until_there_are_enough_programs() -> None:
    index = _index(((1, 20000), (1, 3000), (300, 4000)))
    assert chunk_len_for(index, PAGE_SIZE, 4, 12) is None  # 1 + 1 + 10 tiles
    cuts = [chunk_len_for(index, PAGE_SIZE, 4, n) for n in (13, 50, 200, 10**6)]
    assert cuts == [16384, 2048, 512, 256]
    for chunk_len, most in zip(cuts, (13, 50, 200, 10**6), strict=True):
        tiles = plan_tiles(index, PAGE_SIZE, 4, 128, chunk_len)
        assert sum(map(len, tiles.by_rows.values())) <= most


def test_short_contexts_are_not_cut() -> None:
    assert chunk_len_for(_index(((1, 256), (1, 9))), PAGE_SIZE, 4, 1000) is None
    assert chunk_len_for(_index(()), PAGE_SIZE, 4, 1000) is None
