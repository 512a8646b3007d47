"""Token store: what was written comes back; damage is told."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendrun.data.flat_tokens import FlatTokens
from blendrun.data.token_store import TokenStore, TokenStoreWriter
from blendrun.errors import PlanError


def write(folder, prompts):
    writer = TokenStoreWriter(folder)
    for start in range(0, len(prompts), 2):
        writer.append(FlatTokens.of([np.array(p, np.int32) for p in prompts[start : start + 2]]))
    return writer.close()


@given(prompts=st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=5), max_size=7))
def test_prompts_come_back_in_order(tmp_path_factory, prompts):
    folder = tmp_path_factory.mktemp("store")
    store = write(folder, prompts)
    assert len(store) == len(prompts)
    assert [list(store[i]) for i in range(len(store))] == prompts
    assert list(store.lengths()) == [len(ids) for ids in prompts]
    tokens = np.load(folder / "tokens.npy", mmap_mode="r")
    assert tokens.dtype == np.int32
    assert len(tokens) == sum(map(len, prompts))


def test_nothing_is_a_store_before_it_is_closed(tmp_path):
    write(tmp_path, [[1, 2]])
    writer = TokenStoreWriter(tmp_path)
    writer.append(FlatTokens.of([np.array([5], np.int32)]))
    with pytest.raises(PlanError, match="cannot read the token store"):
        TokenStore.open(tmp_path)
    writer.abort()
    assert not list(tmp_path.glob("*.tmp"))
    assert list(write(tmp_path, [[7]])[0]) == [7]


def test_an_index_outside_is_an_error(tmp_path):
    store = write(tmp_path, [[1], [2]])
    for index in (-1, 2):
        with pytest.raises(IndexError):
            store[index]


@pytest.mark.parametrize("name", ["tokens.npy", "offsets.npy"])
def test_a_file_cut_short_is_refused(tmp_path, name):
    write(tmp_path, [[1, 2, 3], [4]])
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[:-4])
    with pytest.raises(PlanError):
        TokenStore.open(tmp_path)


def test_files_that_do_not_belong_together_are_refused(tmp_path):
    write(tmp_path, [[1, 2, 3], [4]])
    np.save(tmp_path / "offsets.npy", np.array([0, 2, 3], np.int64))
    with pytest.raises(PlanError, match="do not match"):
        TokenStore.open(tmp_path)
