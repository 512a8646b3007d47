"""vLLM's own scheduler, which also counts, and can be held to the batcher's budget.

vLLM imports this module by its name when it starts; its scheduler's interface may change, so
`vllm.py` does without where this cannot be had.
"""

from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler


class CountingScheduler(Scheduler):  # type: ignore[misc]
    """First come, first served, as its base."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.most_tokens: int = self.max_num_scheduled_tokens  # of any step
        self._lost: dict[str, int] = {}  # tokens that a preemption has lost, by request
        self.preemptions = self.recomputed_tokens = 0  # ever
        self.prefill_tokens = self.decode_tokens = 0  # ever

    def hold_to(self, num_tokens: int | None) -> None:
        """The next steps compute so many tokens at most; None: as many as vLLM likes."""
        most = self.most_tokens if num_tokens is None else min(num_tokens, self.most_tokens)
        self.max_num_scheduled_tokens = max(most, len(self.running) + 1)

    def schedule(self, *args: Any, **named: Any) -> Any:
        output = super().schedule(*args, **named)
        for name, num_tokens in output.num_scheduled_tokens.items():
            request = self.requests[name]
            end = request.num_computed_tokens  # after this step
            if num_tokens == 1 and end > request.num_prompt_tokens:
                self.decode_tokens += 1
                continue
            self.prefill_tokens += num_tokens
            if name in self._lost:
                again = min(self._lost[name], end) - (end - num_tokens)
                self.recomputed_tokens += max(again, 0)
                if end >= self._lost[name]:
                    del self._lost[name]
        for name in output.finished_req_ids:
            self._lost.pop(name, None)
        return output

    def _preempt_request(self, request: Any, *args: Any, **named: Any) -> None:
        self.preemptions += 1
        lost = max(self._lost.get(request.request_id, 0), request.num_computed_tokens)
        self._lost[request.request_id] = lost
        super()._preempt_request(request, *args, **named)
