"""Tensor-parallel ranks as threads of this process, joined by Gloo like processes."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch

from blendrun.cost.tensor_shards import Shard
from blendrun.data.model_files import ModelFiles
from blendrun.engine.compute import Compute
from blendrun.engine.decoder_config import DecoderConfig
from blendrun.engine.follower import follow
from blendrun.engine.loaded_model import LoadedModel, checked_compute, load_decoder
from blendrun.engine.settings import ExecuteSettings
from blendrun.engine.tensor_group import Message, Ranks
from blendrun.errors import BackendError
from blendrun.launch.rendezvous import Meeting, join, open_store

R = TypeVar("R")
_END = 0  # a kind of message that no rank knows


def _ranks(
    size: int, in_order: bool, work: Callable[[Ranks], R], threads: ThreadPoolExecutor
) -> tuple[Ranks, list[Future[R]], Any]:
    """The first rank, for the caller; `work` on the others; a store to keep to the end."""
    store = open_store()
    meeting = Meeting(store.port, 60.0, in_order)
    cpu = torch.device("cpu")
    others = [
        threads.submit(lambda rank: work(join(Shard(rank, size), meeting, cpu)), rank)
        for rank in range(1, size)
    ]
    return join(Shard(0, size), meeting, cpu), others, store


def on_ranks(size: int, work: Callable[[Ranks], R], in_order: bool = False) -> list[R]:
    """What `work` makes on each of `size` ranks."""
    with ThreadPoolExecutor(size) as threads:
        first, others, _store = _ranks(size, in_order, work, threads)
        return [work(first), *(other.result() for other in others)]


def load_on_threads(
    files: ModelFiles,
    settings: ExecuteSettings,
    compute_of: Callable[[ExecuteSettings], Compute] | None = None,
) -> LoadedModel:
    """A `ModelLoader`. `compute_of`: makes what a rank runs on; None: as the settings say."""
    config = DecoderConfig.from_hf(files.config)

    def work(group: Any) -> None:
        compute = compute_of(settings) if compute_of else checked_compute(config, settings)
        decoder = load_decoder(files.folder, config, settings, compute, group)
        with suppress(BackendError):  # `_END`
            follow(decoder, compute)

    threads = ThreadPoolExecutor(settings.tp)
    first, others, store = _ranks(settings.tp, settings.deterministic, work, threads)

    held = [store]

    def close() -> None:
        first.tell(Message(_END, [], np.zeros(0, np.int32)))
        for other in others:
            other.result()
        threads.shutdown()
        del held[:]

    compute = compute_of(settings) if compute_of else None
    return replace(LoadedModel.load(files, settings, first, compute), close=close)
