"""Which device a rank computes on, and what is refused, as far as that goes without a GPU."""

import pytest
import torch

from blendrun.engine.devices import check_devices, choose_device
from blendrun.errors import InputError


@pytest.fixture
def three_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)


@pytest.mark.usefixtures("three_gpus")
def test_ranks_take_gpus_in_turn():
    taken = [choose_device("auto", place) for place in range(5)]
    assert taken == [torch.device("cuda", number) for number in (0, 1, 2, 0, 1)]
    assert choose_device("cpu", 2) == torch.device("cpu")


@pytest.mark.usefixtures("three_gpus")
@pytest.mark.parametrize(("tp", "dp"), [(2, 2), (4, 1), (1, 4)])
def test_more_ranks_than_gpus_are_refused_with_the_numbers(tp: int, dp: int):
    numbers = f"tp {tp} times dp {dp} is 4 ranks, .* torch sees 3 here"
    with pytest.raises(InputError, match=numbers) as caught:
        check_devices("auto", tp, dp)
    assert caught.value.exit_code == 2
    check_devices("cpu", tp, dp)


@pytest.mark.usefixtures("three_gpus")
@pytest.mark.parametrize(("tp", "dp"), [(1, 1), (3, 1), (1, 3)])
def test_as_many_ranks_as_gpus_go(tp: int, dp: int):
    check_devices("cuda", tp, dp)


def test_cores_are_shared_by_any_number_of_ranks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    check_devices("auto", 64, 64)
    assert choose_device("auto", 7) == torch.device("cpu")
