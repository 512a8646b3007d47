"""Which device of this machine a rank computes on."""

from typing import Literal

import torch

from blendrun.errors import InputError

DeviceName = Literal["auto", "cpu", "cuda"]


def takes_gpu(wanted: DeviceName) -> bool:
    """Whether a model runs on the GPU.

    Raises:
        InputError: a GPU is asked for, and torch sees none.
    """
    if wanted == "auto":
        return torch.cuda.is_available()
    if wanted == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "--device cuda: torch sees no GPU",
            "install torch with CUDA and a driver that it can use, or leave --device out",
        )
    return wanted == "cuda"


def choose_device(wanted: DeviceName, place: int = 0) -> torch.device:
    """The device of a rank. `place` counts all ranks of this machine, tensor-parallel ones first.

    Raises:
        InputError: as `takes_gpu`.
    """
    if not takes_gpu(wanted):
        return torch.device("cpu")
    return torch.device("cuda", place % torch.cuda.device_count())


def check_devices(wanted: DeviceName, tp: int, dp: int) -> None:
    """Raises InputError where `dp` groups of `tp` ranks on this machine have no GPU each."""
    if not takes_gpu(wanted):
        return
    count = torch.cuda.device_count()
    if tp * dp > count:
        raise InputError(
            f"tp {tp} times dp {dp} is {tp * dp} ranks, each with a GPU of its own: torch sees "
            f"{count} here",
            "fewer with --tp and --dp, or --device cpu",
        )
