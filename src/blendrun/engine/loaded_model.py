"""A plan's model in memory: found, loaded once, and what it is computed with."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch

from blendrun.data.detokenizer import Detokenizer
from blendrun.data.model_files import ModelFiles, resolve_model
from blendrun.data.reasoning import ReasoningMarks
from blendrun.engine.compute import Compute, choose_compute, others_beside
from blendrun.engine.decoder import Decoder
from blendrun.engine.decoder_config import DecoderConfig
from blendrun.engine.deterministic import check_deterministic
from blendrun.engine.kv_dtypes import KV_DTYPES
from blendrun.engine.paged_attention import PagedAttention
from blendrun.engine.rank_memory import least_free_bytes
from blendrun.engine.row_blocks import ROW_BLOCK
from blendrun.engine.schedule_choice import choose_schedule
from blendrun.engine.self_check import check_compute
from blendrun.engine.settings import ExecuteSettings
from blendrun.engine.tensor_group import ALONE, TensorGroup
from blendrun.engine.weight_packing import pack_weights
from blendrun.engine.weights import load_weights, random_weights
from blendrun.errors import BackendError, InputError, PlanError
from blendrun.schedule.plan_record import Plan

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model in memory, ready for requests; of a tensor-parallel group, the first rank's part."""

    files: ModelFiles
    decoder: Decoder
    compute: Compute
    detokenizer: Detokenizer
    reasoning: ReasoningMarks | None
    close: Callable[[], None] = lambda: None  # ends the other ranks

    @classmethod
    def load(
        cls,
        files: ModelFiles,
        settings: ExecuteSettings,
        group: TensorGroup = ALONE,
        compute: Compute | None = None,
        place: int = 0,
    ) -> Self:
        """`compute`: what to run it on; None: as the settings say, on the device of `place`.

        Raises:
            InputError: the weights do not fit, or what the settings ask for cannot be had.
            BackendError: the device's kernels fail their self-check.
        """
        if group.shard.size != (settings.tp or 1):
            raise BackendError(f"{settings.tp} tensor-parallel ranks need a launcher")
        config = DecoderConfig.from_hf(files.config)
        if compute is None:
            compute = checked_compute(config, settings, place)
        choose_schedule(settings.schedule, compute.device.type, group.shard.size)  # or refuse now
        decoder = load_decoder(files.folder, config, settings, compute, group)
        marks = ReasoningMarks.from_folder(files.folder)
        detokenizer = Detokenizer.from_folder(
            files.folder, (marks.begin, marks.end) if marks else ()
        )
        return cls(files, decoder, compute, detokenizer, marks)

    @property
    def attention(self) -> PagedAttention:
        return self.compute.attention

    def free_kv_bytes(self, settings: ExecuteSettings) -> int:
        """What there is for KV pages on each rank."""
        return least_free_bytes(self.decoder, settings.chunk_size, settings.max_seqs)


def checked_compute(config: DecoderConfig, settings: ExecuteSettings, place: int = 0) -> Compute:
    """What the settings ask for; a device's kernels have passed a self-check.

    A GPU is the current device of this process afterwards. `place`: see `choose_device`.

    Raises:
        InputError: it cannot be had.
        BackendError: the self-check failed.
    """
    dtype, kv_dtype = DTYPES[settings.dtype], KV_DTYPES[settings.kv_dtype]
    compute = choose_compute(
        settings.device,
        settings.attention,
        config.head_dim,
        dtype,
        settings.pod,
        kv_dtype,
        place,
    )
    if compute.device.type != "cpu":
        if settings.deterministic:
            raise InputError("--deterministic is for CPUs so far", "leave it out, or --device cpu")
        torch.cuda.set_device(compute.device)
        check_compute(compute, others_beside(compute, kv_dtype), config, dtype, kv_dtype)
    return compute


def load_decoder(
    folder: Path,
    config: DecoderConfig,
    settings: ExecuteSettings,
    compute: Compute,
    group: TensorGroup,
) -> Decoder:
    """The decoder in checkpoint `folder`, or this rank's part of it; all ranks load at once.

    Raises:
        InputError: the weights are not those of `config` (the whole model's), or --deterministic
            or the dtype cannot be had.
    """
    dtype, device = DTYPES[settings.dtype], compute.device
    if dtype == torch.float16 and device.type == "cpu":
        raise InputError(
            "float16 needs a GPU: CPU kernels compute in bfloat16 and float32",
            "--dtype bfloat16, or float32",
        )
    if settings.load_format == "dummy":
        weights = random_weights(config, dtype, device, group.shard)
    else:
        weights = load_weights(folder, config, dtype, device, group.shard)
    row_block = ROW_BLOCK if settings.deterministic else None
    decoder = Decoder(
        config,
        pack_weights(weights),
        row_block,
        group=group,
        elementwise=compute.elementwise,
        tokens=compute.tokens,
    )
    if settings.deterministic:
        check_deterministic(decoder, compute.attention)
    return decoder


def find_model(plan: Plan, settings: ExecuteSettings) -> ModelFiles:
    """The plan's model, with its weights where they are to be read.

    Raises:
        PlanError: its config or tokenizer is not the one of the plan.
    """
    weights = settings.load_format != "dummy"
    spec = settings.model or plan.model.spec
    files = resolve_model(spec, weights=weights, engine=settings.engine)
    if files.fingerprint != plan.model.fingerprint:
        raise PlanError(
            f"{files.spec} is not the model of the plan: its config or tokenizer differs",
            "plan again, or name the right model with --model",
        )
    return files
