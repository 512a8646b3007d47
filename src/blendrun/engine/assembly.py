"""Put an engine together for one attempt: model, KV pages, cache, queue, batcher, loop."""

import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from blendrun import __version__
from blendrun.cost.cost_model import CostModel
from blendrun.cost.hardware import HardwareProfile
from blendrun.cost.model_shape import ModelShape
from blendrun.data.model_files import ModelFiles, resolve_model
from blendrun.data.results import ResultJournal
from blendrun.data.tokenizer import PromptTokenizer
from blendrun.engine import kv_memory
from blendrun.engine.decoder import Decoder
from blendrun.engine.decoder_config import DecoderConfig
from blendrun.engine.generations import Generations
from blendrun.engine.loop import Advance, RunLoop
from blendrun.engine.prefix_cache import PrefixCache
from blendrun.engine.requests import EngineRequests
from blendrun.engine.settings import ExecuteSettings
from blendrun.engine.torch_backend import TorchBackend
from blendrun.engine.weights import load_weights
from blendrun.errors import PlanError
from blendrun.kernels.cpu.attention import CpuAttention
from blendrun.schedule.admission import AdmissionQueue, QueueColumns, footprints
from blendrun.schedule.batcher import Batcher, BatchLimits
from blendrun.schedule.plan_file import Plan
from blendrun.tree.prefix_tree import Int32
from blendrun.units import format_bytes

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True, slots=True)
class Assembled:
    loop: RunLoop
    environment: dict[str, Any]  # what runs, and why


def find_model(plan: Plan, settings: ExecuteSettings) -> ModelFiles:
    """The plan's model with its weights.

    Raises:
        PlanError: its config or tokenizer is not the one of the plan.
    """
    files = resolve_model(settings.model or plan.model.spec, weights=True)
    if files.fingerprint != plan.model.fingerprint:
        raise PlanError(
            f"{files.spec} is not the model of the plan: its config or tokenizer differs",
            "plan again, or name the right model with --model",
        )
    return files


def assemble(
    plan: Plan,
    settings: ExecuteSettings,
    files: ModelFiles,
    requests: EngineRequests,
    pending: Int32,
    journal: ResultJournal,
    attempt: int,
    on_step: Callable[[Advance], None],
) -> Assembled:
    """An engine for the `pending` requests, int32, in planned order.

    Requests that do not fit into the KV pages even alone are answered with an error at once.
    """
    dtype = _DTYPES[settings.dtype]
    config = DecoderConfig.from_hf(files.config)
    page_bytes = kv_memory.kv_bytes_per_page(config, settings.page_size, dtype.itemsize)
    pages = kv_memory.num_pages(
        requests, pending, settings.page_size, page_bytes, settings.kv_memory
    )
    cache = PrefixCache(
        requests.tree,
        pending,
        num_pages=pages,
        page_size=settings.page_size,
        max_seqs=settings.max_seqs,
        max_len=int((requests.prompt_len + requests.max_tokens)[pending].max()) + 1,
        share=settings.prefix_cache,
    )
    too_large = _too_large(requests, pending, cache)
    for request in too_large:
        cache.forget(request)
    batcher = Batcher(
        _queue(plan, requests, pending[~np.isin(pending, too_large)], pages * settings.page_size),
        cache,
        requests.prompt_len,
        BatchLimits(settings.chunk_size, settings.max_seqs),
    )
    generations = Generations(
        requests, files.eos_token_ids, PromptTokenizer.from_folder(files.folder)
    )
    attention = CpuAttention()
    decoder = Decoder(config, load_weights(files.folder, config, dtype))
    hardware = HardwareProfile.load("cpu")
    shape = ModelShape.from_hf_config(files.config, plan.model.name)
    loop = RunLoop(
        requests,
        batcher,
        cache,
        TorchBackend(decoder, attention, requests, generations, cache),
        generations,
        journal,
        CostModel(shape, hardware),
        attempt=attempt,
        flush_interval_s=settings.flush_interval_s,
        on_step=on_step,
    )
    for request in too_large:
        loop.fail(
            request,
            f"needs_more_memory: {kv_memory.longest_len(requests, request)} tokens with the "
            f"prefixes they share need more than {pages} KV pages of {settings.page_size} tokens; "
            "a new run with more --kv-memory can answer it",
        )
    environment = {
        "blendrun": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "dtype": settings.dtype,
        "attention": attention.backend,
        "attention_reason": attention.backend_reason(),
        "kv_pages": pages,
        "page_size": settings.page_size,
        "kv_memory": format_bytes(pages * page_bytes),
        "chunk_size": settings.chunk_size,
        "max_seqs": settings.max_seqs,
        "prefix_cache": settings.prefix_cache,
        "policy": plan.policy,
        "hardware": hardware.to_table(),
        "model_shape": asdict(shape),
    }
    return Assembled(loop, environment)


def _too_large(requests: EngineRequests, pending: Int32, cache: PrefixCache) -> list[int]:
    """Pending requests that do not fit into all pages together with their whole output."""
    longest = (requests.prompt_len + requests.max_tokens)[pending]
    # a page holds at least one token of its own, so the others fit without a closer look
    doubtful = pending[longest + 2 > cache.num_pages].tolist()
    # one page of slack: a prompt that is cached whole recomputes its last token
    return [
        request
        for request in doubtful
        if cache.pages_for(request, 0, kv_memory.longest_len(requests, request)) + 1
        > cache.num_pages
    ]


def _queue(
    plan: Plan, requests: EngineRequests, pending: Int32, capacity_tokens: int
) -> AdmissionQueue:
    own_len = requests.tree.edge_len[requests.tree.leaf_node]
    columns = QueueColumns(requests.density, footprints(own_len, requests.expected_output_len))
    density = plan.times.density
    root_density = float("inf") if density is None else density
    return AdmissionQueue(pending, columns, root_density, capacity_tokens, plan.two_ended)
