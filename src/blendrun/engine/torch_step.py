"""A step that has been given to a device: its tokens come when the device is through."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from blendrun.engine.arrival import Arrival
from blendrun.engine.drawing import Drawn
from blendrun.engine.layer_clock import LayerClock
from blendrun.engine.logprobs import Logprobs, StepLogprobs
from blendrun.engine.prompt_scores import PromptScores, Wanted
from blendrun.engine.step_result import StepResult
from blendrun.tree.prefix_tree import Int32


class StepClocks(NamedTuple):
    attention: LayerClock
    model: LayerClock  # with attention
    sample: LayerClock

    def seconds(self) -> tuple[float, float, float]:
        """Of attention, of everything else in the model, of sampling."""
        attention_s = self.attention.seconds()
        rest_s = max(self.model.seconds() - attention_s, 0.0)  # parts attend beside products
        return attention_s, rest_s, self.sample.seconds()


@dataclass(frozen=True, slots=True, eq=False)
class ScoredPrompts:
    """Log-probabilities of prompts, on their way to `scores`."""

    scores: PromptScores
    wanted: Wanted
    found: Arrival

    def keep(self) -> None:
        self.scores.keep(self.wanted, Logprobs.arrived(self.found))


class TorchStep:
    """See `engine.launcher.InFlight`."""

    def __init__(
        self,
        request: Int32,
        drawn: Drawn,
        scored: ScoredPrompts | None,
        clocks: StepClocks,
        device: torch.device,
    ) -> None:
        """`request`: [R] for whom tokens were `drawn`."""
        self.request = request
        self._scored, self._clocks, self._asks = scored, clocks, drawn.asks
        self._logprobs: Arrival | None = None
        if drawn.logprobs is not None:
            self._logprobs = Arrival(device, *drawn.logprobs)
        self.token_ids: Tensor = drawn.tokens.token_ids  # int64 [R], on the device
        self._tokens = Arrival(device, *drawn.tokens)  # the last to arrive

    def is_there(self) -> bool:
        return self._tokens.is_there()

    def result(self) -> StepResult:
        """Waits for the device."""
        token_ids, bad = self._tokens.wait()
        if self._scored is not None:
            self._scored.keep()
        logprobs = None
        if self._logprobs is not None:
            logprobs = StepLogprobs(self._asks, Logprobs.arrived(self._logprobs))
        return StepResult(token_ids.astype(np.int32), bad, *self._clocks.seconds(), logprobs)
