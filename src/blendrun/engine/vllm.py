"""vLLM's offline engine in this process: requests in, new tokens out, step by step.

Knows vLLM and token ids, no plan. It runs without vLLM's own process for the engine and without its
scheduling ahead of results, so that every step sees what came in before it.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from blendrun.data.sampling import MOST_LOGPROBS
from blendrun.engine.vllm_logprobs import Position
from blendrun.errors import BackendError, CapacityError, InputError

INSTALL = "pip install 'blendrun[vllm]'; docs/vllm.md says how on a CPU"
_SCHEDULER = "blendrun.engine.vllm_scheduler.CountingScheduler"


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """What vLLM is started with; None leaves the choice to it."""

    dtype: str
    tp: int
    max_len: int  # tokens of the longest request
    max_seqs: int
    max_step_tokens: int
    prefix_cache: bool
    kv_bytes: int | None
    block_size: int | None
    seed: int


@dataclass(frozen=True, slots=True)
class Grown:
    """What a step has added to a request; `end` says that it got no further, and why."""

    request: int
    token_ids: Sequence[int]
    logprobs: Sequence[Position] | None  # of these tokens, where they are asked for
    prompt_logprobs: Sequence[Position | None]  # of prompt tokens, in one piece or several
    num_cached: int  # tokens of its prompt that were there
    end: str | None


class Vllm:
    def __init__(self, engine: Any, version: str) -> None:
        """`engine` is a `vllm.LLMEngine`."""
        self._engine, self.version = engine, version
        cache = engine.vllm_config.cache_config
        # vLLM keeps one block for itself
        self.num_blocks, self.block_size = int(cache.num_gpu_blocks) - 1, int(cache.block_size)
        core = getattr(engine.engine_core, "engine_core", None)
        scheduler = getattr(core, "scheduler", None)
        self.scheduler = scheduler if hasattr(scheduler, "hold_to") else None

    @classmethod
    def open(cls, folder: Path, options: VllmOptions) -> Self:
        """Load the checkpoint in `folder`.

        Raises:
            InputError: vLLM is not installed.
            CapacityError, BackendError: vLLM does not start, with what it says.
        """
        try:
            import vllm
        except ImportError as error:
            raise InputError(f"vLLM cannot be imported: {error}", INSTALL) from error
        named = engine_arguments(folder, options)
        try:
            with numba_hidden():
                engine = vllm.LLMEngine.from_engine_args(vllm.EngineArgs(**named))
        except Exception as error:  # whatever it is, another start would end the same way
            kind = CapacityError if "memory" in str(error).lower() else BackendError
            raise kind(
                f"vLLM {vllm.__version__} does not start: {error}", "docs/vllm.md may help"
            ) from error
        return cls(engine, vllm.__version__)

    def add(self, request: int, token_ids: list[int], params: Any) -> str | None:
        """Let a request wait; where vLLM refuses it, what it says."""
        try:
            prompt = {"type": "token", "prompt_token_ids": token_ids}
            self._engine.add_request(str(request), prompt, params)
        except _refusals() as error:
            return " ".join(str(error).split())
        return None

    def step(self) -> list[Grown]:
        """Compute one step. Raises whatever vLLM dies of."""
        return [_grown(output) for output in self._engine.step()]

    def end(self, requests: Iterable[int]) -> None:
        """Let go of these."""
        self._engine.abort_request([str(request) for request in requests])

    @property
    def num_unfinished(self) -> int:
        return int(self._engine.get_num_unfinished_requests())


def engine_arguments(folder: Path, options: VllmOptions) -> dict[str, Any]:
    """As `vllm.EngineArgs` names them. vLLM must be installed."""
    named: dict[str, Any] = {
        "model": str(folder),
        "dtype": options.dtype,
        "tensor_parallel_size": options.tp,
        "max_model_len": options.max_len,
        "max_num_seqs": options.max_seqs,
        "max_num_batched_tokens": max(options.max_step_tokens, options.max_seqs),
        "enable_prefix_caching": options.prefix_cache,
        "enable_chunked_prefill": True,
        "max_logprobs": MOST_LOGPROBS,
        "structured_outputs_config": {"backend": "guidance"},  # the native engine's, too
        "async_scheduling": False,
        "disable_log_stats": True,
        "seed": options.seed,
    }
    if options.kv_bytes is not None:
        named["kv_cache_memory_bytes"] = options.kv_bytes
    if options.block_size is not None:
        named["block_size"] = options.block_size
    if can_count():
        named["scheduler_cls"] = _SCHEDULER
    return named


def can_count() -> bool:
    """Whether this vLLM's scheduler is one that `vllm_scheduler` can build on."""
    try:
        from vllm.v1.core.sched.scheduler import Scheduler
    except ImportError:
        return False
    return all(hasattr(Scheduler, name) for name in ("schedule", "_preempt_request"))


def prepare_environment(tp: int, cores: Iterable[int], devices: Sequence[int] | None) -> None:
    """What vLLM reads when it is imported; what a person has set stays, where it can.

    `cores`: of this rank. `devices`: accelerators of this rank among several; None: all.
    """
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    bound = bound_cores(sorted(cores), tp)
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", bound)
    if devices is not None:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = bound  # ranks must not share what was set
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = visible.split(",") if visible else [str(i) for i in range(max(devices) + 1)]
        if max(devices) < len(names):
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names[i] for i in devices)


def bound_cores(cores: Sequence[int], tp: int) -> str:
    """Cores of each tensor-parallel process on a CPU, as VLLM_CPU_OMP_THREADS_BIND has them."""
    ends = [i * len(cores) // tp for i in range(tp + 1)]
    parts = [cores[ends[i] : ends[i + 1]] or cores for i in range(tp)]
    return "|".join(",".join(map(str, part)) for part in parts)


@contextmanager
def numba_hidden() -> Iterator[None]:
    """One module of numba's is not among the loaded ones while vLLM starts; who has it keeps it.

    vLLM looks at the `__dict__` of all that loaded modules hold, and a handle in this one answers
    every name with a function.
    """
    name = "llvmlite.binding.ffi"
    module = sys.modules.pop(name, None)
    try:
        yield
    finally:
        if module is not None:
            sys.modules[name] = module


def _refusals() -> tuple[type[Exception], ...]:
    """What vLLM raises for a request that it does not take."""
    try:
        from vllm.exceptions import VLLMClientError
    except ImportError:
        return (ValueError,)
    return (ValueError, VLLMClientError)


def _grown(output: Any) -> Grown:
    answer = output.outputs[0]
    reason = answer.finish_reason
    return Grown(
        int(output.request_id),
        answer.token_ids,
        answer.logprobs,
        output.prompt_logprobs or (),
        output.num_cached_tokens or 0,
        (reason or "unknown") if output.finished else None,
    )
