"""Put vLLM and a window's requests together: the run loop of `assembly.py` around another backend.

Everything but the arithmetic is the native engine's: batcher, ends of answers, journal, what
unfinished answers keep.
"""

import platform
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from blendrun import __version__
from blendrun.cost.cost_model import CostModel
from blendrun.cost.hardware import HardwareProfile
from blendrun.cost.model_shape import ModelShape
from blendrun.data.detokenizer import Detokenizer
from blendrun.data.model_files import ModelFiles
from blendrun.data.reasoning import ReasoningMarks
from blendrun.data.results import RankJournal
from blendrun.engine import kv_memory
from blendrun.engine.assembly import Assembled, RankShare, make_batcher
from blendrun.engine.begun import to_continue
from blendrun.engine.deadline import Deadline
from blendrun.engine.generations import Generations
from blendrun.engine.loop import RunLoop
from blendrun.engine.requests import EngineRequests
from blendrun.engine.settings import ExecuteSettings
from blendrun.engine.twins import Twins, find_twins
from blendrun.engine.unfinished import Unfinished
from blendrun.engine.vllm import Vllm, VllmOptions
from blendrun.engine.vllm_backend import VllmBackend, VllmBlocks
from blendrun.engine.vllm_logprobs import VllmScores
from blendrun.engine.vllm_params import ParamsFactory, can_continue
from blendrun.schedule.plan_file import REQUESTS_FILE, sidecar_folder, window_paths
from blendrun.schedule.plan_record import Plan
from blendrun.schedule.step_job import steering
from blendrun.tree.prefix_tree import Int32
from blendrun.units import format_bytes

_ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
_LARGEST_BLOCK = 256  # tokens, of any vLLM
# of `StepRecord`, which vLLM does not tell apart
UNKNOWN = ("attention_s", "sample_s")
UNCOUNTED = ("preemptions", "recomputed_tokens", "mean_page_use_frac", "prefill_tokens")


@dataclass(frozen=True, slots=True)
class JobSize:
    """The largest of a plan's windows, in tokens."""

    max_len: int  # of the longest request with its whole output
    total: int  # of all requests of a window, with their whole outputs
    requests: int

    @classmethod
    def of(cls, path: Path, plan: Plan) -> Self:
        longest = total = most = 0
        for window in window_paths(path, plan):
            table = pq.read_table(
                sidecar_folder(window) / REQUESTS_FILE, columns=["prompt_len", "max_tokens"]
            )
            lengths = table["prompt_len"].to_numpy().astype(np.int64)
            lengths = lengths + np.maximum(table["max_tokens"].to_numpy(), 1)
            longest = max(longest, int(lengths.max(initial=0)))
            total, most = max(total, int(lengths.sum())), max(most, len(lengths))
        return cls(longest, total, most)


@dataclass(frozen=True, slots=True, eq=False)
class LoadedVllm:
    vllm: Vllm
    files: ModelFiles
    shape: ModelShape
    detokenizer: Detokenizer
    reasoning: ReasoningMarks | None

    @classmethod
    def load(
        cls, files: ModelFiles, plan: Plan, settings: ExecuteSettings, size: JobSize, near: int
    ) -> Self:
        """Start vLLM for jobs of `size`, as one of `near` ranks of this machine."""
        options = vllm_options(files, plan, settings, size, near)
        return cls.of(Vllm.open(files.folder, options), files, plan)

    @classmethod
    def of(cls, vllm: Vllm, files: ModelFiles, plan: Plan) -> Self:
        """Of a vLLM that runs the model in `files`."""
        shape = ModelShape.from_hf_config(files.config, plan.model.name)
        marks = ReasoningMarks.from_folder(files.folder)
        detokenizer = Detokenizer.from_folder(
            files.folder, (marks.begin, marks.end) if marks else ()
        )
        return cls(vllm, files, shape, detokenizer, marks)


def vllm_options(
    files: ModelFiles, plan: Plan, settings: ExecuteSettings, size: JobSize, near: int
) -> VllmOptions:
    """What vLLM is started with, as one of `near` ranks of this machine."""
    tp, element_bytes = settings.tp or 1, _ELEMENT_BYTES[settings.dtype]
    shape = ModelShape.from_hf_config(files.config, plan.model.name)
    kv_bytes = settings.kv_memory
    if kv_bytes is None and _is_on_cpu():
        token_bytes = shape.kv_bytes_per_token(tp, element_bytes)
        needed = size.total + 2 * _LARGEST_BLOCK * (size.requests + 1)
        kv_bytes = min(needed * token_bytes, kv_memory.free_bytes(near * tp))
    default_page = ExecuteSettings().page_size
    cost = _cost(plan, settings, shape, near)
    how = steering(plan.admission, plan.settings["budget"], cost, True)
    # decodes come on top of a chunk where compute and reads are kept in proportion
    decodes = settings.max_seqs if how.budget == "ratio" else 0
    return VllmOptions(
        dtype=settings.dtype,
        tp=tp,
        max_len=min(size.max_len, files.max_position),
        max_seqs=settings.max_seqs,
        max_step_tokens=settings.chunk_size + decodes,
        prefix_cache=settings.prefix_cache,
        kv_bytes=kv_bytes,
        block_size=None if settings.page_size == default_page else settings.page_size,
        seed=int(plan.settings["seed"]) % 2**31,
    )


def assemble_vllm(
    plan: Plan,
    settings: ExecuteSettings,
    model: LoadedVllm,
    requests: EngineRequests,
    pending: Int32,
    kept: pa.Table,
    journal: RankJournal,
    attempt: int,
    begin_s: float,
    deadline: Deadline,
    share: RankShare,
) -> Assembled:
    """As `assembly.assemble`, for one rank."""
    vllm, files = model.vllm, model.files
    settings = replace(settings, page_size=vllm.block_size)
    twins = find_twins(requests, pending) if settings.prefix_cache else Twins.none(pending)
    pending = twins.running
    begun, later = to_continue(requests, pending, twins.others, kept)
    begun = [answer for answer in begun if can_continue(requests, answer.request)]
    generated = np.zeros(len(requests), np.int32)
    generated[[answer.request for answer in begun]] = [len(answer.token_ids) for answer in begun]
    cost = _cost(plan, settings, model.shape, share.num_near)
    shared = replace(requests, tree=requests.tree.in_whole_pages(vllm.block_size))
    batcher = make_batcher(plan, settings, shared, share.requests, generated, cost, vllm.num_blocks)

    def too_large(request: int) -> str:
        return kv_memory.too_large(requests, request, vllm.num_blocks, vllm.block_size)

    generations = Generations(
        requests, files.eos_token_ids, model.detokenizer, reasoning=model.reasoning
    )
    generations.resume(begun)
    scores = VllmScores(requests)
    params = ParamsFactory(requests, files.eos_token_ids)
    backend = VllmBackend(
        vllm, requests, generations, scores, params, is_held=batcher.budget == "ratio"
    )
    loop = RunLoop(
        requests,
        batcher,
        VllmBlocks(backend, vllm.num_blocks),
        backend,
        generations,
        scores,
        journal,
        Unfinished(
            journal, requests, generations, later.slice(0, 0), settings.unfinished_interval_s
        ),
        cost,
        too_large,
        twins=twins.others,
        attempt=attempt,
        begin_s=begin_s,
        deadline=deadline,
        flush_interval_s=settings.flush_interval_s,
        on_step=lambda _: None,
        rank=share.rank,
        feed=share.feed,
        num_cached=backend.num_cached,
    )
    for request in batcher.too_large.tolist():
        loop.fail(request, too_large(request))
    budget, learns = batcher.budget, batcher.learns
    environment = _environment(plan, settings, model, cost) | {
        "budget": budget,
        "learns_lengths": learns,
    }
    return Assembled(loop, len(begun), later, environment)


def _cost(plan: Plan, settings: ExecuteSettings, shape: ModelShape, near: int) -> CostModel:
    """Prices of the machine that was planned for; this one where that is a CPU."""
    name = "this-cpu" if _is_on_cpu() else str(plan.settings["hardware"])
    hardware = HardwareProfile.load(name)
    # vLLM reads a shared prefix for every request by itself
    hardware = replace(hardware, shared_reads=False).shared_by(near)
    return CostModel.of_group(shape, hardware, settings.tp or 1)


def _environment(
    plan: Plan, settings: ExecuteSettings, model: LoadedVllm, cost: CostModel
) -> dict[str, Any]:
    vllm = model.vllm
    element_bytes = _ELEMENT_BYTES[settings.dtype]
    kv_bytes = (
        vllm.num_blocks
        * vllm.block_size
        * model.shape.kv_bytes_per_token(settings.tp or 1, element_bytes)
    )
    return {
        "blendrun": __version__,
        "engine": "vllm",
        "vllm": vllm.version,
        "python": platform.python_version(),
        "tp": settings.tp or 1,
        "dtype": settings.dtype,
        "attention": f"vLLM {vllm.version}",
        "unknown": [*UNKNOWN, *(() if vllm.scheduler is not None else UNCOUNTED)],
        "kv_pages": vllm.num_blocks,
        "page_size": vllm.block_size,
        "kv_memory": format_bytes(kv_bytes),
        "kv_bytes": kv_bytes,
        "chunk_size": settings.chunk_size,
        "max_seqs": settings.max_seqs,
        "prefix_cache": settings.prefix_cache,
        "shared_prefix_attention": False,
        "deterministic": False,
        "policy": plan.policy,
        "hardware": cost.hardware.to_table(),
        "model_shape": asdict(model.shape),
    }


def _is_on_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())
