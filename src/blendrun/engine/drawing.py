"""From the logits of a step to its tokens: what changes them, the draw, its log-probabilities."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blendrun.engine.generations import Generations
from blendrun.engine.guides import Guides
from blendrun.engine.logit_edits import LogitEdits
from blendrun.engine.logprobs import StepLogprobs, drawn_logprobs
from blendrun.engine.requests import EngineRequests
from blendrun.engine.sampler import SamplingColumns, sample
from blendrun.schedule.batch import Batch
from blendrun.tree.prefix_tree import Int32


class Drawn(NamedTuple):
    token_ids: Int32  # [R]
    bad: npt.NDArray[np.bool_]  # [R] logits were not finite
    logprobs: StepLogprobs | None  # None: no row of the step asks for them


class TokenDrawer:
    """What no row of a step asks for costs that step nothing."""

    def __init__(
        self, requests: EngineRequests, generations: Generations, guides: Guides | None
    ) -> None:
        self._requests, self._generations, self._guides = requests, generations, guides
        self._edits = LogitEdits(requests, generations)

    def draw(self, logits: Tensor, batch: Batch) -> Drawn:
        """A token for each row of `logits` [R, vocab]; they may be changed in place."""
        columns, request = self._requests, batch.request[batch.needs_logits]
        asks = np.flatnonzero(columns.logprobs[request] >= 0)
        drawn = sample(
            self._changed(logits, request, len(asks) > 0), self._sampling(batch, request)
        )
        logprobs = None
        if len(asks):
            top_k = int(columns.logprobs[request[asks]].max())
            logprobs = drawn_logprobs(logits, asks, drawn.token_ids, top_k)
        return Drawn(drawn.token_ids, drawn.bad, logprobs)

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

    def _sampling(self, batch: Batch, request: Int32) -> SamplingColumns:
        columns = self._requests
        position = (batch.start + batch.num_tokens)[batch.needs_logits].astype(np.int64)
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
