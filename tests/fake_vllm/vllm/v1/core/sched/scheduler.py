"""First come, first served, with whole blocks for every request and a cache of full blocks."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any


@dataclass(eq=False)
class Request:
    request_id: str
    token_ids: list[int]
    params: Any
    num_computed_tokens: int = 0
    num_cached_tokens: int = -1
    num_blocks: int = 0

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.token_ids)


class Scheduler:
    def __init__(
        self, most_tokens: int, most_running: int, num_blocks: int, block_size: int, caches: bool
    ) -> None:
        self.max_num_scheduled_tokens = most_tokens
        self.requests: dict[str, Request] = {}
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self._most_running, self._num_blocks = most_running, num_blocks
        self._block_size, self._caches = block_size, caches
        self._cached: set[tuple[int, ...]] = set()
        self._finished: set[str] = set()

    @property
    def kv_cache_manager(self) -> Any:
        return SimpleNamespace(usage=self._used() / self._num_blocks)

    def add_request(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def finish_requests(self, request_id: str) -> None:
        request = self.requests.pop(request_id)
        (self.running if request in self.running else self.waiting).remove(request)
        self._finished.add(request_id)

    def schedule(self) -> Any:
        budget, scheduled = self.max_num_scheduled_tokens, {}
        for request in list(self.running):
            while request in self.running and self._lacks_room(request):
                victim = self.running.pop()
                self._preempt_request(victim, 0.0)
            if request in self.running:
                budget -= self._schedule(request, budget, scheduled)
        while self.waiting and budget > 0 and len(self.running) < self._most_running:
            request = self.waiting[0]
            if self._lacks_room(request):
                break
            self.running.append(self.waiting.pop(0))
            self._look_up(request)
            budget -= self._schedule(request, budget, scheduled)
        if self.requests and not scheduled:
            raise RuntimeError("nothing fits")
        finished, self._finished = self._finished, set()
        return SimpleNamespace(num_scheduled_tokens=scheduled, finished_req_ids=finished)

    def _schedule(self, request: Request, budget: int, scheduled: dict[str, int]) -> int:
        n = min(budget, len(request.token_ids) - request.num_computed_tokens)
        if n <= 0:
            return 0
        scheduled[request.request_id] = n
        request.num_blocks = self._blocks(request)
        request.num_computed_tokens += n
        full = request.num_computed_tokens // self._block_size * self._block_size
        for end in range(self._block_size, full + 1, self._block_size):
            self._cached.add(tuple(request.token_ids[:end]))
        return n

    def _look_up(self, request: Request) -> None:
        end = 0
        while (
            self._caches
            and end + self._block_size < len(request.token_ids)
            and tuple(request.token_ids[: end + self._block_size]) in self._cached
        ):
            end += self._block_size
        request.num_computed_tokens = end
        if request.num_cached_tokens < 0:
            request.num_cached_tokens = end

    def _preempt_request(self, request: Request, timestamp: float) -> None:
        del timestamp
        request.num_computed_tokens = request.num_blocks = 0
        self.waiting.insert(0, request)

    def _blocks(self, request: Request) -> int:
        return len(request.token_ids) // self._block_size + 1

    def _lacks_room(self, request: Request) -> bool:
        return self._used() - request.num_blocks + self._blocks(request) > self._num_blocks

    def _used(self) -> int:
        return sum(request.num_blocks for request in self.running)
