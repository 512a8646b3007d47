"""What computes a model: a device, its attention and its other kernels, and why these.

Only what is chosen here knows one device from another; a step is the same everywhere.
"""

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Literal

import torch

from blendrun.engine.cuda_graphs import CudaGraphMaker
from blendrun.engine.cuda_lanes import CudaLaneMaker
from blendrun.engine.devices import DeviceName, choose_device
from blendrun.engine.elementwise import PLAIN, Elementwise
from blendrun.engine.graphs import Capture
from blendrun.engine.kv_dtypes import check_on_cpu, check_triton, is_in_triton
from blendrun.engine.overlap import LaneMaker
from blendrun.engine.paged_attention import PagedAttention
from blendrun.engine.sampler import PLAIN_TOKENS, TokenKernels
from blendrun.errors import InputError
from blendrun.kernels.cpu.attention import CpuAttention
from blendrun.kernels.cpu.library import load_all
from blendrun.kernels.flashinfer.attention import FlashInferAttention
from blendrun.kernels.flashinfer.elementwise import FlashInferElementwise
from blendrun.kernels.flashinfer.library import FlashInfer, find_flashinfer, why_not
from blendrun.kernels.paged.torch_attention import TorchAttention

AttentionName = Literal["auto", "flashinfer", "triton", "torch"]


@dataclass(frozen=True, slots=True, eq=False)
class Compute:
    device: torch.device
    attention: PagedAttention
    elementwise: Elementwise
    kernels: dict[str, str]  # by noun, in one line: what runs beside attention, and why
    lanes: LaneMaker | None = None  # for parts of steps at the same time; None: it cannot
    capture: Capture | None = None  # of decode-only steps; None: it cannot
    why_no_graphs: str = "this device captures nothing"
    tokens: TokenKernels = PLAIN_TOKENS


def choose_compute(
    device: DeviceName,
    attention: AttentionName,
    head_dim: int,
    dtype: torch.dtype,
    pod: bool,
    kv_dtype: torch.dtype | None = None,
    place: int = 0,
) -> Compute:
    """What is asked for, or the best that is there.

    `pod`: prefill and decode attention of a step in one launch. `kv_dtype`: of the KV pages; None:
    that of the model. `place`: see `choose_device`.

    Raises:
        InputError: what is asked for cannot be had.
    """
    chosen = choose_device(device, place)
    if chosen.type == "cpu":
        check_on_cpu(kv_dtype)
        if pod or attention not in ("auto", "torch"):
            raise InputError(f"--{'pod' if pod else f'attention {attention}'} is for GPUs")
        return Compute(
            chosen,
            CpuAttention("torch" if attention == "torch" else None),
            PLAIN,
            load_all(),
            why_no_graphs="a CPU starts each operator itself",
        )
    library, reason = find_flashinfer()
    problem = reason if library is None else why_not(head_dim, dtype)
    if library is not None and problem is None and attention in ("auto", "flashinfer"):
        return flashinfer_compute(library, chosen, reason, pod=pod, kv_dtype=kv_dtype)
    if attention == "flashinfer" or pod:
        what = "--pod" if pod else "--attention flashinfer"
        raise InputError(f"{what}: {problem or 'another attention was asked for'}")
    if attention == "torch":
        return torch_compute(chosen, "plain torch was asked for", kv_dtype)
    version = _triton_version()
    if version is not None:
        check_triton(chosen, kv_dtype)
        why = "it was asked for" if attention == "triton" else problem
        return triton_compute(chosen, f"Triton {version}: {why}", kv_dtype)
    if attention == "triton":
        raise InputError("--attention triton: Triton is not installed", "pip install triton")
    reason = f"plain torch, which is slow: {problem}, and there is no Triton"
    return torch_compute(chosen, reason, kv_dtype)


def _triton_version() -> str | None:
    if find_spec("triton") is None:
        return None
    return str(import_module("triton").__version__)


def flashinfer_compute(
    library: FlashInfer,
    device: torch.device,
    reason: str,
    *,
    pod: bool = False,
    kv_dtype: torch.dtype | None = None,
) -> Compute:
    """All kernels from FlashInfer, or from a module like it."""
    attention = FlashInferAttention(library, device, reason, fused=pod, kv_dtype=kv_dtype)
    elementwise = FlashInferElementwise(library)
    kernels = dict.fromkeys(("rms_norm", "rotary", "silu_mul"), reason)
    capture = Capture(attention, CudaGraphMaker()) if device.type == "cuda" else None
    version = _triton_version()
    drawn = f"torch on {device.type}: no Triton" if version is None else f"Triton {version}"
    kernels |= dict.fromkeys(("argmax", "draw"), drawn)
    tokens = PLAIN_TOKENS if version is None else _triton_tokens()
    return Compute(device, attention, elementwise, kernels, _lanes(device), capture, tokens=tokens)


def torch_compute(
    device: torch.device, reason: str, kv_dtype: torch.dtype | None = None
) -> Compute:
    names = ("argmax", "draw", "rms_norm", "rotary", "silu_mul")
    kernels = dict.fromkeys(names, f"torch on {device.type}")
    attention = TorchAttention(device, reason, kv_dtype=kv_dtype)
    why_no_graphs = "plain torch attention goes by lengths that the CPU has"
    return Compute(device, attention, PLAIN, kernels, _lanes(device), why_no_graphs=why_no_graphs)


def others_beside(
    compute: Compute, kv_dtype: torch.dtype | None = None
) -> dict[str, PagedAttention]:
    """What a device's attention is checked against, by name: plain torch, and our own kernels."""
    plain = TorchAttention(compute.device, kv_dtype=kv_dtype)
    others: dict[str, PagedAttention] = {"plain torch": plain}
    has_triton = _triton_version() is not None and is_in_triton(compute.device, kv_dtype)
    if compute.attention.backend == "flashinfer" and has_triton:
        others["Triton"] = triton_compute(compute.device, "to compare", kv_dtype).attention
    return others


def triton_compute(
    device: torch.device, reason: str, kv_dtype: torch.dtype | None = None
) -> Compute:
    """Our Triton kernels, which are imported here and nowhere else."""
    module = import_module("blendrun.kernels.paged.triton_attention")
    names = ("argmax", "draw", "rms_norm", "rotary", "silu_mul")
    return Compute(
        device,
        module.TritonAttention(device, reason, kv_dtype=kv_dtype),
        module.TritonElementwise(),
        dict.fromkeys(names, reason),
        _lanes(device),
        why_no_graphs="our Triton attention has as many programs as each step has tiles",
        tokens=_triton_tokens(),
    )


def _triton_tokens() -> TokenKernels:
    """Imported here and nowhere else, as Triton may be missing."""
    kernels: TokenKernels = import_module("blendrun.engine.triton_tokens").TRITON_TOKENS
    return kernels


def _lanes(device: torch.device) -> LaneMaker | None:
    return CudaLaneMaker(device) if device.type == "cuda" else None
