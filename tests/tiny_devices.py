"""The engine's GPU path on the CPU, with the stand-in for FlashInfer."""

from dataclasses import replace
from typing import Any

import torch

import flashinfer_stand_in
from blendrun.data.model_files import ModelFiles
from blendrun.engine.compute import Compute, torch_compute, triton_compute
from blendrun.engine.kv_dtypes import KV_DTYPES
from blendrun.engine.loaded_model import LoadedModel
from blendrun.engine.sampler import PLAIN_TOKENS, TokenKernels
from blendrun.engine.settings import ExecuteSettings
from blendrun.kernels.cpu.shared_prefixes import COST_LEN
from blendrun.kernels.flashinfer.attention import FlashInferAttention
from blendrun.kernels.flashinfer.elementwise import FlashInferElementwise

CPU = torch.device("cpu")


def stand_in_compute(
    library: Any = flashinfer_stand_in,
    pod: bool = False,
    prefix_cost_len: int = COST_LEN,
    kv_dtype: torch.dtype | None = None,
) -> Compute:
    attention = FlashInferAttention(
        library,
        CPU,
        "a stand-in",
        fused=pod,
        prefix_cost_len=prefix_cost_len,
        kv_dtype=kv_dtype,
    )
    return Compute(CPU, attention, FlashInferElementwise(library), {})


class OnStandIn:
    """A `ModelLoader`; shared prefixes are read in levels whatever that costs."""

    def __init__(
        self, library: Any = flashinfer_stand_in, tokens: TokenKernels = PLAIN_TOKENS
    ) -> None:
        self._library, self._tokens = library, tokens

    def compute(self, settings: ExecuteSettings) -> Compute:
        kv_dtype = KV_DTYPES[settings.kv_dtype]
        made = stand_in_compute(self._library, settings.pod, prefix_cost_len=0, kv_dtype=kv_dtype)
        return replace(made, tokens=self._tokens)

    def __call__(self, files: ModelFiles, settings: ExecuteSettings) -> LoadedModel:
        return LoadedModel.load(files, settings, compute=self.compute(settings))


def in_plain_torch(files: ModelFiles, settings: ExecuteSettings) -> LoadedModel:
    """A `ModelLoader`: the last resort of GPUs."""
    compute = torch_compute(CPU, "asked for", KV_DTYPES[settings.kv_dtype])
    return LoadedModel.load(files, settings, compute=compute)


def in_triton(files: ModelFiles, settings: ExecuteSettings) -> LoadedModel:
    """A `ModelLoader`: our Triton kernels, in the interpreter."""
    compute = triton_compute(CPU, "interpreted", KV_DTYPES[settings.kv_dtype])
    compute.attention.prefix_cost_len = 0
    return LoadedModel.load(files, settings, compute=compute)
