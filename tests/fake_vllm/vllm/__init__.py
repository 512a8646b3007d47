"""What `blendrun.engine.vllm` uses of vLLM, without a model: tokens are hashes of those before.

Strict: names, types and orders of calls that the real one would not take are refused. What is to go
wrong is in the JSON of the environment variable FAKE_VLLM.
"""

import json
import os
import signal
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vllm.exceptions import VLLMClientError
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.core.sched.scheduler import Request, Scheduler

__all__ = ["EngineArgs", "LLMEngine", "SamplingParams"]
__version__ = "0.32.0+fake"


@dataclass(frozen=True, kw_only=True)
class EngineArgs:
    model: str
    dtype: str
    tensor_parallel_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    max_logprobs: int
    structured_outputs_config: dict[str, str]
    async_scheduling: bool
    disable_log_stats: bool
    seed: int
    kv_cache_memory_bytes: int
    block_size: int = 16
    scheduler_cls: str | None = None


class LLMEngine:
    def __init__(self, args: EngineArgs) -> None:
        self.faults = json.loads(os.environ.get("FAKE_VLLM", "{}"))
        if os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") != "0" or args.async_scheduling:
            raise RuntimeError("the scheduler would be in another process, or ahead")
        if "start" in self.faults:
            raise RuntimeError(self.faults["start"])
        config = json.loads((Path(args.model) / "config.json").read_text())
        self._args, self._vocab = args, config["vocab_size"]
        blocks = self.faults.get("blocks", 1 + args.kv_cache_memory_bytes // (1 << 12))
        self.vllm_config = SimpleNamespace(
            cache_config=SimpleNamespace(num_gpu_blocks=blocks, block_size=args.block_size)
        )
        kind: type[Scheduler] = Scheduler
        if args.scheduler_cls is not None:
            module, _, name = args.scheduler_cls.rpartition(".")
            kind = getattr(import_module(module), name)
        scheduler = kind(args.max_num_batched_tokens, args.max_num_seqs, blocks - 1,
                         args.block_size, args.enable_prefix_caching)  # fmt: skip
        self._scheduler = scheduler
        self.engine_core = SimpleNamespace(engine_core=SimpleNamespace(scheduler=scheduler))
        self._steps = 0

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> "LLMEngine":
        return cls(engine_args)

    def get_num_unfinished_requests(self) -> int:
        return len(self._scheduler.requests)

    def add_request(self, request_id: str, prompt: dict[str, Any], params: Any) -> str:
        ids = prompt["prompt_token_ids"]
        if prompt != {"type": "token", "prompt_token_ids": ids}:
            raise TypeError(f"a prompt with {list(prompt)}")
        if type(request_id) is not str or request_id in self._scheduler.requests:
            raise TypeError(f"request_id {request_id!r}")
        if not isinstance(params, SamplingParams) or not all(type(token) is int for token in ids):
            raise TypeError("parameters or tokens of another type")
        if len(ids) + 1 > min(self._args.max_model_len, self.faults.get("longest", 10**9)):
            raise VLLMClientError(f"The prompt of {len(ids)} tokens\nis too long")
        self._scheduler.add_request(Request(request_id, list(ids), params))
        return request_id

    def abort_request(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self._scheduler.finish_requests(request_id)

    def step(self) -> list[Any]:
        self._steps += 1
        self._die()
        outputs = []
        output = self._scheduler.schedule()
        for name in output.num_scheduled_tokens:
            request = self._scheduler.requests[name]
            if request.num_computed_tokens == len(request.token_ids):
                outputs.append(self._grow(request))
        return outputs

    def _die(self) -> None:
        """At a step of the first processes, or while a request is there that begins so."""
        left = Path(self.faults.get("deaths", "no such file"))
        if left.is_file() and int(left.read_text()) and self._steps == 3:
            left.write_text(str(int(left.read_text()) - 1))
            raise RuntimeError("the engine core has died")
        begins = self.faults.get("killer")
        if begins and any(r.token_ids[: len(begins)] == begins for r in self._scheduler.running):
            os.kill(os.getpid(), signal.SIGKILL)

    def _grow(self, request: Request) -> Any:
        params, prompt_len = request.params, request.num_prompt_tokens
        assert params.output_kind is RequestOutputKind.DELTA
        token = params.next_token(request.token_ids, prompt_len, self._vocab)
        is_first = len(request.token_ids) == prompt_len
        request.token_ids.append(token)
        made = len(request.token_ids) - prompt_len
        reason = None
        if token in params.stop_token_ids:
            reason = "stop"
        elif made == params.max_tokens or made == self.faults.get("most_tokens"):
            reason = "length"
        if reason is not None:
            self._scheduler.finish_requests(request.request_id)
        prompt_logprobs: list[Any] | None = None
        if params.prompt_logprobs is not None:
            ids = request.token_ids[1:prompt_len]
            best = [None, *(self._best(t, params.prompt_logprobs) for t in ids)]
            prompt_logprobs = best if is_first else []
        logprobs = None if params.logprobs is None else [self._best(token, params.logprobs)]
        return SimpleNamespace(
            request_id=request.request_id,
            outputs=[SimpleNamespace(token_ids=[token], logprobs=logprobs, finish_reason=reason)],
            finished=reason is not None,
            prompt_logprobs=prompt_logprobs,
            num_cached_tokens=request.num_cached_tokens,
        )

    def _best(self, token: int, k: int) -> dict[int, Any]:
        """The token is always the likeliest; those after it follow."""
        return {
            (token + i) % self._vocab: SimpleNamespace(logprob=-1.0 - i, rank=i + 1)
            for i in range(max(k, 1))
        }
