"""Put an engine together: a loaded model, and what runs one window of requests with it."""

import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from blendrun import __version__
from blendrun.cost.cost_model import CostModel
from blendrun.cost.hardware import HardwareProfile
from blendrun.cost.model_shape import BF16_BYTES, ModelShape
from blendrun.cost.step_prices import StepPrices
from blendrun.data.results import RankJournal, ResultJournal
from blendrun.engine import kv_memory
from blendrun.engine.begun import to_continue
from blendrun.engine.deadline import Deadline
from blendrun.engine.generations import Generations
from blendrun.engine.graphs import choose_graphs
from blendrun.engine.guides import Guides
from blendrun.engine.kv_dtypes import KV_DTYPES
from blendrun.engine.loaded_model import DTYPES, LoadedModel
from blendrun.engine.loop import Advance, Feed, RunLoop
from blendrun.engine.overlap import choose_overlap
from blendrun.engine.prefix_cache import PrefixCache
from blendrun.engine.prompt_scores import PromptScores
from blendrun.engine.requests import EngineRequests
from blendrun.engine.schedule_choice import choose_schedule
from blendrun.engine.settings import ExecuteSettings
from blendrun.engine.torch_backend import TorchBackend
from blendrun.engine.twins import Twins, find_twins
from blendrun.engine.unfinished import Unfinished
from blendrun.schedule.batcher import Batcher
from blendrun.schedule.compile_batcher import compile_batcher
from blendrun.schedule.plan_record import Plan
from blendrun.schedule.step.begin import BatchLimits
from blendrun.schedule.step_job import batcher_job, fits_at_once, steering
from blendrun.tree.prefix_tree import Int32
from blendrun.units import format_bytes


@dataclass(frozen=True, slots=True)
class RankShare:
    """What one of several data-parallel ranks begins with, and who gives it more."""

    rank: int
    num_near: int  # ranks that share this one's machine, with itself
    requests: Int32  # of those that run, in planned order
    feed: Feed


@dataclass(frozen=True, slots=True)
class Assembled:
    loop: RunLoop
    num_continued: int  # answers that go on with what an earlier attempt made
    later: pa.Table  # unfinished answers of requests that do not run now
    environment: dict[str, Any]  # what runs, and why


def assemble(
    plan: Plan,
    settings: ExecuteSettings,
    model: LoadedModel,
    requests: EngineRequests,
    pending: Int32,
    kept: pa.Table,
    journal: ResultJournal | RankJournal,
    attempt: int,
    begin_s: float,
    deadline: Deadline,
    on_step: Callable[[Advance], None],
    share: RankShare | None = None,
) -> Assembled:
    """An engine for the `pending` requests, int32, in planned order.

    `begin_s` is when generation began on the monotonic clock: step times count from there.
    Requests that do not fit into the KV pages even alone are answered with an error at once. Of
    greedy requests that are equal only one runs, unless nothing is to be shared. `kept` is what
    earlier attempts have of unfinished answers (UNFINISHED_SCHEMA). With a `share` of them, the
    others may come later.
    """
    twins = find_twins(requests, pending) if settings.prefix_cache else Twins.none(pending)
    pending = twins.running
    begun, later = to_continue(requests, pending, twins.others, kept)
    dtype = DTYPES[settings.dtype]
    files, attention, group = model.files, model.attention, model.decoder.group
    config, page_size = model.decoder.config, settings.page_size
    kv_dtype = KV_DTYPES[settings.kv_dtype]
    page_bytes = kv_memory.kv_bytes_per_page(config, page_size, (kv_dtype or dtype).itemsize)
    limit = settings.kv_memory
    if limit is None:
        limit = model.free_kv_bytes(settings)
    pages = kv_memory.num_pages(requests, pending, page_size, page_bytes, limit)
    hardware = _hardware(model.compute.device)
    hardware = replace(hardware, shared_reads=hardware.shared_reads and settings.shares_reads)
    shape = ModelShape.from_hf_config(files.config, plan.model.name)
    if share is not None and hardware.kind == "cpu":  # else each has a device of its own
        hardware = hardware.shared_by(share.num_near)
    kv_element_bytes = BF16_BYTES if kv_dtype is None else kv_dtype.itemsize
    cost = CostModel.of_group(shape, hardware, group.shard.size, kv_element_bytes=kv_element_bytes)
    generated = np.zeros(len(requests), np.int32)
    generated[[answer.request for answer in begun]] = [len(answer.token_ids) for answer in begun]
    mine = pending if share is None else share.requests
    overlap, overlap_reason = choose_overlap(
        settings.overlap, model.compute.lanes, cost, settings.pod
    )
    capture, graphs_reason = choose_graphs(
        settings.graphs, model.compute.capture, model.compute.why_no_graphs, model.decoder
    )
    is_ahead, schedule_reason = choose_schedule(
        settings.schedule, model.compute.device.type, group.shard.size
    )
    batcher = make_batcher(plan, settings, requests, mine, generated, cost, pages)

    def too_large(request: int) -> str:
        return kv_memory.too_large(requests, request, pages, settings.page_size)

    cache = PrefixCache(
        requests.tree,
        num_pages=pages,
        page_size=settings.page_size,
        max_seqs=settings.max_seqs,
        max_len=int((requests.prompt_len + requests.max_tokens)[pending].max()) + 1,
        share=settings.prefix_cache,
    )
    guides = None
    if requests.has_structure[pending].any():
        guides = Guides(files.folder, shape.vocab_size, files.eos_token_ids)
    generations = Generations(
        requests, files.eos_token_ids, model.detokenizer, guides, model.reasoning
    )
    generations.resume(begun)
    scores = PromptScores(requests, pending)
    backend = TorchBackend(
        model.decoder,
        attention,
        requests,
        generations,
        scores,
        guides,
        cache,
        share_reads=settings.shares_reads,
        may_split=not settings.deterministic,
        overlap=overlap,
        lanes=model.compute.lanes,
        capture=capture,
    )
    loop = RunLoop(
        requests,
        batcher,
        cache,
        backend,
        generations,
        scores,
        journal,
        Unfinished(
            journal,
            requests,
            generations,
            later if share is None else later.slice(0, 0),  # the coordinator keeps those
            settings.unfinished_interval_s,
        ),
        cost,
        too_large,
        twins=twins.others,
        attempt=attempt,
        begin_s=begin_s,
        deadline=deadline,
        flush_interval_s=settings.flush_interval_s,
        on_step=on_step,
        rank=share.rank if share else 0,
        feed=share.feed if share else None,
        ahead=backend if is_ahead else None,
    )
    for request in batcher.too_large.tolist():
        loop.fail(request, too_large(request))
    environment = {
        "blendrun": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "tp": group.shard.size,
        "dtype": settings.dtype,
        "load_format": settings.load_format,
        "device": str(model.compute.device),
        "attention": attention.backend,
        "attention_reason": attention.backend_reason(),
        "kernels": model.compute.kernels,
        # of steps that are replayed
        "unknown": [] if capture is None else ["attention_s"],
        "overlap": "off" if overlap is None else "on",
        "overlap_reason": overlap_reason,
        "graphs": "off" if capture is None else "on",
        "graphs_reason": graphs_reason,
        "schedule": "async" if is_ahead else "sequential",
        "schedule_reason": schedule_reason,
        "kv_pages": pages,
        "page_size": settings.page_size,
        "kv_memory": format_bytes(pages * page_bytes),
        "kv_bytes": pages * page_bytes,
        "kv_dtype": settings.kv_dtype,
        "kv_element_bytes": cost.kv_element_bytes,  # as steps are priced
        "weight_bytes": shape.weight_bytes(dtype.itemsize),
        "chunk_size": settings.chunk_size,
        "max_seqs": settings.max_seqs,
        "prefix_cache": settings.prefix_cache,
        "shared_prefix_attention": settings.shares_reads,
        "deterministic": settings.deterministic,
        "row_block": model.decoder.row_block,
        "policy": plan.policy,
        "budget": batcher.budget,
        "learns_lengths": batcher.learns,
        "hardware": cost.hardware.to_table(),
        "model_shape": asdict(shape),
    }
    return Assembled(loop, len(begun), later, environment)


def _hardware(device: torch.device) -> HardwareProfile:
    """The profile of the device that runs."""
    if device.type == "cpu":
        return HardwareProfile.load("this-cpu")
    profile = HardwareProfile.of_gpu(torch.cuda.get_device_name(device))
    return HardwareProfile.load("auto") if profile is None else profile


def make_batcher(
    plan: Plan,
    settings: ExecuteSettings,
    requests: EngineRequests,
    pending: Int32,
    generated: Int32,
    cost: CostModel,
    pages: int,
) -> Batcher:
    """The batcher of the requests `pending`, which have `generated` [N] tokens each."""
    compile_batcher()
    job = batcher_job(
        requests.tree,
        pending,
        np.maximum(requests.max_tokens, 1),  # a prompt alone takes a step, too
        requests.expected_output_len,
        requests.learned,
        cost,
        requests.seen,
        generated,
        requests.sequence,
    )
    limits = BatchLimits(pages, settings.page_size, settings.chunk_size, settings.max_seqs)
    budget, seed = plan.settings["budget"], plan.settings["seed"]
    all_fits = fits_at_once(job, pages * settings.page_size)
    how = steering(plan.admission, budget, cost, True, seed, all_fits)
    return Batcher(job, limits, StepPrices.of(cost), how, settings.prefix_cache)
