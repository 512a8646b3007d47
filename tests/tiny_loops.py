"""Run loops around a backend that makes up tokens, at once or a step late."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from blendrun.data.results import ResultJournal
from blendrun.data.unfinished import UNFINISHED_SCHEMA
from blendrun.engine.deadline import Deadline
from blendrun.engine.generations import Generations
from blendrun.engine.loop import Advance, RunLoop
from blendrun.engine.prefix_cache import PrefixCache
from blendrun.engine.prompt_scores import PromptScores
from blendrun.engine.requests import EngineRequests
from blendrun.engine.step_result import StepResult
from blendrun.engine.unfinished import Unfinished
from blendrun.errors import BackendError
from blendrun.schedule.batcher import Batcher
from blendrun.schedule.step.begin import BatchLimits, Steering
from tiny_jobs import cost_model, flat, tree_of
from tiny_steps import PRICES, batcher_job

PROMPTS = [[1, 2, 3, i] for i in range(6)]
MAX_TOKENS = [1, 4, 2, 5, 3, 2]


class CountingBackend:
    """Token = how many the request has; fails at step `fail_at`; row `bad` has no numbers."""

    def __init__(self, cache: PrefixCache, fail_at: int = 0, bad: int = -1) -> None:
        self.cache, self.fail_at, self.bad = cache, fail_at, bad
        self.batches = []

    def run(self, batch) -> StepResult:
        self.cache.take_writes()
        self.batches.append(batch)
        if len(self.batches) == self.fail_at:
            raise BackendError("the device is gone")
        request = batch.request[batch.needs_logits]
        tokens = (batch.start + batch.num_tokens)[batch.needs_logits].astype(np.int32)
        return StepResult(tokens, request == self.bad, 0.25, 0.5, 0.125)


class LateBackend(CountingBackend):
    """Its steps are not there until somebody asks for them; `needs` tokens of some steps."""

    def __init__(self, cache: PrefixCache, needs: tuple[int, ...] = (), **how) -> None:
        super().__init__(cache, **how)
        self.events: list[tuple[str, int]] = []
        self._needs = needs

    def launch(self, batch, before) -> "LateStep":
        assert before is None or not before.is_there()
        self.events.append(("launch", batch.step))
        return LateStep(self, batch.step, self.run(batch))

    def needs_tokens(self, batch) -> bool:
        return batch.step in self._needs


class LateStep:
    def __init__(self, backend: LateBackend, step: int, result: StepResult) -> None:
        self._backend, self._step, self._result = backend, step, result
        self._is_there = False

    def is_there(self) -> bool:
        return self._is_there

    def result(self) -> StepResult:
        self._backend.events.append(("take", self._step))
        self._is_there = True
        return self._result


class Job:
    """Token = its position, 4 for the first of an answer; it ends with one of `eos`."""

    def __init__(
        self,
        run_dir: Path,
        *,
        flush_interval_s: float = 0.0,
        is_late: bool = False,
        eos: tuple[int, ...] = (),
        num_pages: int = 100,
        max_tokens: list[int] = MAX_TOKENS,
        deadline: Deadline | None = None,
        **backend: Any,
    ) -> None:
        n = len(PROMPTS)
        tree = tree_of(PROMPTS)
        zeros = np.zeros(n, np.int32)
        requests = EngineRequests(
            sequence=np.arange(n, dtype=np.int32),
            row=np.arange(n, dtype=np.int64) * 10,
            sample=np.zeros(n, np.int32),
            prompt_len=tree.prompt_len,
            max_tokens=np.array(max_tokens, np.int32),
            expected_output_len=np.array(max_tokens, np.int32),
            learned=np.zeros(n, bool),
            temperature=zeros,
            top_p=zeros,
            top_k=zeros,
            min_p=zeros,
            seed=zeros,
            draw_key=zeros.astype(np.int64),
            ignore_eos=np.zeros(n, bool),
            repetition_penalty=zeros + 1,
            presence_penalty=zeros,
            frequency_penalty=zeros,
            logit_bias={},
            structure={},
            has_structure=np.zeros(n, bool),
            has_penalties=np.zeros(n, bool),
            has_edits=np.zeros(n, bool),
            logprobs=np.full(n, -1, np.int8),
            prompt_logprobs=np.full(n, -1, np.int8),
            score_start=np.full(n, -1, np.int32),
            stop={},
            stop_token_ids={},
            has_stops=np.zeros(n, bool),
            prompts=flat(PROMPTS),
            tree=tree,
            seen=(zeros[:0], zeros[:0]),
        )
        self.cache = PrefixCache(tree, num_pages=num_pages, page_size=4, max_seqs=3, max_len=500)
        self.batcher = Batcher(
            batcher_job(tree, max_tokens, believed=[1] * n if num_pages < 100 else None),
            BatchLimits(num_pages, 4, 8, 3),
            PRICES,
            Steering(),
        )
        kind = LateBackend if is_late else CountingBackend
        self.backend = kind(self.cache, **backend)
        self.advances: list[Advance] = []
        self.run_dir = run_dir
        self.journal = ResultJournal(run_dir)
        self.generations = Generations(
            requests, eos, SimpleNamespace(decode=lambda ids: " ".join(map(str, ids)))
        )
        nothing = UNFINISHED_SCHEMA.empty_table()
        self.loop = RunLoop(
            requests,
            self.batcher,
            self.cache,
            self.backend,
            self.generations,
            PromptScores(requests, np.arange(n, dtype=np.int32)),
            self.journal,
            Unfinished(self.journal, requests, self.generations, nothing, 1e9),
            cost_model(),
            lambda request: f"request {request} is too large",
            twins={},
            attempt=3,
            begin_s=time.monotonic(),
            deadline=deadline or Deadline(0.0, None),
            flush_interval_s=flush_interval_s,
            on_step=self.advances.append,
            ahead=self.backend if is_late else None,
        )

    def run(self) -> "Job":
        with self.journal:
            self.loop.run()
        return self
