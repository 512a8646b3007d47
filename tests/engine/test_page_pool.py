import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendrun.engine.page_pool import PagePool
from blendrun.errors import BackendError


@given(st.integers(1, 30), st.lists(st.integers(-10, 10), max_size=30))
def test_a_page_is_free_or_out_and_never_both(num_pages: int, moves: list[int]):
    pool, out = PagePool(num_pages), []
    for move in moves:
        if 0 <= move <= pool.num_free:
            out += pool.take(move).tolist()
        elif move < 0:
            back, out = out[:-move], out[-move:]
            pool.give_back(back)
        assert sorted([*out, *pool.free_pages().tolist()]) == list(range(num_pages))
        assert pool.num_free == num_pages - len(out)


def test_taking_more_than_is_free_is_refused_with_the_numbers():
    pool = PagePool(3)
    pool.take(2)
    with pytest.raises(BackendError, match="2 pages wanted, 1 free of 3"):
        pool.take(2)
    assert pool.num_free == 1


def test_giving_back_more_than_there_are_is_refused():
    pool = PagePool(3)
    pages = pool.take(1).tolist()
    pool.give_back(pages)
    with pytest.raises(BackendError, match="4 free pages in a pool of 3"):
        pool.give_back(pages)
