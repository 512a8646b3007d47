"""What tests of kernels share: one thread, and attention in C++ and in plain torch."""

from collections.abc import Iterator

import pytest
import torch

from blendrun.errors import InputError
from blendrun.kernels.cpu.attention import CpuAttention


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny problems: more threads would only wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=["cpp", "torch"])
def kernel(request: pytest.FixtureRequest) -> CpuAttention:
    try:
        return CpuAttention(request.param)
    except InputError as error:
        pytest.skip(error.message)
