"""What changes logits before a token is drawn: bias, then penalties.

In vLLM's order: bias, repetition penalty (as transformers has it: over prompt and output), then
frequency and presence penalty (as OpenAI has them: over the output). Rows that ask for none of it
are not touched, and a step without any other rows costs nothing.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blendrun.engine.generations import Generations
from blendrun.engine.requests import PENALTIES, EngineRequests
from blendrun.kernels.uploads import upload
from blendrun.tree.prefix_tree import Int32, Int64


class LogitEdits:
    def __init__(self, requests: EngineRequests, generations: Generations) -> None:
        self._requests, self._generations = requests, generations

    def apply(self, logits: Tensor, request: Int32) -> None:
        """Change float32 `logits` [R, vocab] of `request` [R] in place."""
        rows = np.flatnonzero(self._requests.has_edits[request])
        if not len(rows):
            return
        self._add_bias(logits, rows, request[rows])
        asks = np.zeros(len(rows), np.bool_)
        for name, off in PENALTIES.items():
            asks |= getattr(self._requests, name)[request[rows]] != off
        if asks.any():
            self._penalise(logits, rows[asks], request[rows[asks]])

    def _add_bias(self, logits: Tensor, rows: Int64, request: Int32) -> None:
        of_row = [self._requests.logit_bias.get(r, ()) for r in request.tolist()]
        pairs = [pair for bias in of_row for pair in bias]
        if pairs:
            ids, bias = zip(*pairs, strict=True)
            at = np.repeat(rows, list(map(len, of_row)))
            place = _like(logits, at), _like(logits, np.array(ids))
            logits[place] += _like(logits, np.array(bias, np.float32))

    def _penalise(self, logits: Tensor, rows: Int64, request: Int32) -> None:
        tokens = [self._generations.token_counts(r) for r in request.tolist()]
        sizes = [len(one.ids) for one in tokens]
        ids = np.concatenate([one.ids for one in tokens])
        counts = _like(logits, np.concatenate([one.counts for one in tokens]))
        repetition, presence, frequency = (
            _like(logits, np.repeat(getattr(self._requests, name)[request], sizes))
            for name in PENALTIES
        )
        place = _like(logits, np.repeat(rows, sizes)), _like(logits, ids)
        values = logits[place]
        values = torch.where(values > 0, values / repetition, values * repetition)
        values -= frequency * counts + presence * (counts > 0)
        logits[place] = values


def _like(logits: Tensor, values: npt.NDArray[Any]) -> Tensor:
    return upload(torch.from_numpy(values), logits.device)
