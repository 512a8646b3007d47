import mmap

import pytest
import torch

from blendrun.kernels.cpu import huge_pages


@pytest.mark.parametrize("shape", [(0,), (3, 5), (1 << 20,), ((1 << 20) + 1,), (3, 1000, 1000)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_memory_is_there_to_the_last_element(shape: tuple[int, ...], dtype: torch.dtype):
    made = huge_pages.empty(shape, dtype)
    assert (made.shape, made.dtype, made.is_contiguous()) == (torch.Size(shape), dtype, True)
    made.fill_(3.0)
    assert float(made.double().sum()) == 3.0 * made.numel()


def test_large_memory_begins_where_a_large_page_does():
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        pytest.skip("this system has no large pages to ask for")
    assert huge_pages.empty((1 << 20,), torch.bfloat16).data_ptr() % (2 << 20) == 0


def test_memory_stays_as_long_as_a_view_of_it():
    row = huge_pages.empty((4, 1 << 20), torch.float32).fill_(7.0)[3]
    assert bool((row == 7.0).all())


def test_where_large_pages_cannot_be_asked_for_memory_is_torchs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    assert huge_pages.empty((1 << 20,), torch.float32).shape == (1 << 20,)
