"""From the logits of a step to its tokens: what changes them, the draw, its log-probabilities."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blendrun.engine.generations import Generations
from blendrun.engine.guides import Guides
from blendrun.engine.logit_edits import LogitEdits
from blendrun.engine.logprobs import LogprobTensors, drawn_logprobs
from blendrun.engine.requests import EngineRequests
from blendrun.engine.sampler import (
    PLAIN_TOKENS,
    Sampled,
    SamplingColumns,
    TokenKernels,
    sample,
)
from blendrun.kernels.uploads import upload
from blendrun.tree.prefix_tree import Int32, Int64


class Drawn(NamedTuple):
    """The tokens of a step; tensors are on the device."""

    tokens: Sampled  # [R]
    asks: Int64  # [A] rows that ask for log-probabilities, …
    logprobs: LogprobTensors | None  # … and these; None: there are no such rows

    @classmethod
    def of(cls, best: Sampled | None, device: torch.device) -> "Drawn":
        """Greedy tokens; None: of no row."""
        if best is None:
            ids = torch.zeros(0, dtype=torch.int64, device=device)
            best = Sampled(ids, ids.bool())
        return cls(best, np.zeros(0, np.int64), None)

    def with_rows(self, rows: Int32, drawn: "Drawn") -> "Drawn":
        """The draws of `rows` in place of what is there."""
        at = upload(torch.from_numpy(rows.astype(np.int64)), self.tokens.bad.device)
        pairs = zip(self.tokens, drawn.tokens, strict=True)
        tokens = Sampled(*(mine.index_copy(0, at, new) for mine, new in pairs))
        return Drawn(tokens, rows[drawn.asks].astype(np.int64), drawn.logprobs)


class TokenDrawer:
    """What no row of a step asks for costs that step nothing."""

    def __init__(
        self,
        requests: EngineRequests,
        generations: Generations,
        guides: Guides | None,
        kernels: TokenKernels = PLAIN_TOKENS,
    ) -> None:
        self._requests, self._generations, self._guides = requests, generations, guides
        self._edits, self._kernels = LogitEdits(requests, generations), kernels

    def needs_logits(self, request: Int32) -> npt.NDArray[np.bool_]:
        """Of which of the requests [R] the best token is not enough to know."""
        columns = self._requests
        return (
            (columns.temperature[request] > 0)
            | (columns.logprobs[request] >= 0)
            | columns.has_edits[request]
            | columns.has_structure[request]
        )

    def needs_tokens(self, request: Int32) -> bool:
        """Whether any of the requests [R] draws its next token by what its last ones are."""
        columns = self._requests
        return bool((columns.has_structure[request] | columns.has_penalties[request]).any())

    def draw(self, logits: Tensor, request: Int32, position: Int64) -> Drawn:
        """A token for each row of `logits` [R, vocab]; they may be changed in place.

        `request` and `position` (of the token in its sequence) are those of the rows, [R].
        """
        columns = self._requests
        asks = np.flatnonzero(columns.logprobs[request] >= 0)
        changed = self._changed(logits, request, len(asks) > 0)
        drawn = sample(changed, self._sampling(request, position), self._kernels)
        logprobs = None
        if len(asks):
            top_k = int(columns.logprobs[request[asks]].max())
            logprobs = drawn_logprobs(logits, asks, drawn.token_ids, top_k)
        return Drawn(drawn, asks, logprobs)

    def _changed(self, logits: Tensor, request: Int32, keep: bool) -> Tensor:
        """Logits as the parameters want them, as they are where no row changes, else float32.

        With `keep` the given ones stay as they are.
        """
        columns = self._requests
        guided = np.flatnonzero(columns.has_structure[request])
        if not len(guided) and not columns.has_edits[request].any():
            return logits
        logits = logits.to(torch.float32, copy=keep)
        self._edits.apply(logits, request)
        if len(guided) and self._guides is not None:
            guides = [self._generations.guide(r) for r in request[guided].tolist()]
            self._guides.mask(logits, guided, guides)
        return logits

    def _sampling(self, request: Int32, position: Int64) -> SamplingColumns:
        columns = self._requests
        return SamplingColumns(
            columns.temperature[request],
            columns.top_p[request],
            columns.top_k[request],
            columns.min_p[request],
            columns.seed[request],
            columns.draw_key[request],
            columns.sample[request],
            position,
        )
