"""Data types of KV pages: which there are, and where they can be had.

float8 halves what a token takes, and what a decode reads, at the cost of three bits of mantissa.
Values are kept with scale 1: checkpoints that come with scales are quantised, and refused.
"""

import torch

from blendrun.errors import InputError

KV_DTYPES = {"auto": None, "fp8_e4m3": torch.float8_e4m3fn}  # None: that of the weights
_TRITON_FROM = (8, 9)  # compute capability from which Triton converts float8_e4m3fn


def check_on_cpu(kv_dtype: torch.dtype | None) -> None:
    """Raises InputError where `kv_dtype` is not that of the weights."""
    if kv_dtype is not None:
        raise InputError(
            f"--kv-dtype {_name(kv_dtype)} is for GPUs: the CPU engine keeps K and V in the dtype "
            "of the weights",
            "leave it out",
        )


def is_in_triton(device: torch.device, kv_dtype: torch.dtype | None) -> bool:
    """Whether our Triton kernels take it there; the interpreter takes all."""
    if kv_dtype is None or device.type != "cuda":
        return True
    return torch.cuda.get_device_capability(device) >= _TRITON_FROM


def check_triton(device: torch.device, kv_dtype: torch.dtype | None) -> None:
    """Raises InputError where our Triton kernels do not take it."""
    if kv_dtype is not None and not is_in_triton(device, kv_dtype):
        major, minor = torch.cuda.get_device_capability(device)
        raise InputError(
            f"--kv-dtype {_name(kv_dtype)}: our Triton kernels need compute capability "
            f"{_TRITON_FROM[0]}.{_TRITON_FROM[1]}, and this GPU has {major}.{minor}",
            "install flashinfer-python, or leave it out",
        )


def _name(dtype: torch.dtype) -> str:
    """As settings have it."""
    return next(name for name, found in KV_DTYPES.items() if found == dtype)
