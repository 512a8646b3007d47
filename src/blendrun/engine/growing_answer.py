"""One answer while it grows: its tokens, and what its row's parameters make of them."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from blendrun.data.token_logprobs import TokenLogprobs
from blendrun.engine.guides import BAD_SCHEMA, Guide
from blendrun.engine.logprobs import Float32
from blendrun.engine.stop_strings import StopSearch
from blendrun.engine.token_counts import TokenCounts
from blendrun.tree.prefix_tree import Int32


@dataclass(frozen=True, slots=True)
class End:
    """Why an answer ends with its newest token. `finish_reason` is None where `error` says more."""

    finish_reason: str | None
    stop_reason: str | None = None  # the stop string, or the stop token's number
    text: str | None = None  # where it is not that of the tokens
    in_text: bool = True  # the newest token is
    error: str | None = None


class TokenLogprob(NamedTuple):
    """Log-probability of a token, and of the k best at its place."""

    chosen: float
    top_ids: Int32  # [k]
    top: Float32  # [k]


LENGTH = End("length")
BY_MODEL = End("stop", in_text=False)


@dataclass(slots=True)
class GrowingAnswer:
    """What nobody asks for stays None or empty."""

    token_ids: list[int] = field(default_factory=list)
    stop_token_ids: tuple[int, ...] = ()
    stops: StopSearch | None = None
    counts: TokenCounts | None = None
    guide: Guide | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)

    def end(self, is_eos: bool) -> End | None:
        """Why the newest token, `is_eos` or not, ends it, if its parameters say so."""
        token = self.token_ids[-1]
        if self.guide is not None:
            if not is_eos:
                self.guide.consume(token)
            if self.guide.error:
                return End(None, error=f"{BAD_SCHEMA}: {self.guide.error}")
        if is_eos:
            return BY_MODEL
        if token in self.stop_token_ids:
            return End("stop", str(token), in_text=False)
        stopped = None if self.stops is None else self.stops.add(self.token_ids)
        if stopped is not None:
            return End("stop", stopped.stop, stopped.text)
        return End("stop") if self.guide is not None and self.guide.is_over else None

    def noted(self, k: int) -> TokenLogprobs:
        """The log-probabilities of all its tokens."""
        chosen, top_ids, top = [], [np.zeros((0, k), np.int32)], [np.zeros((0, k), np.float32)]
        for one, ids, values in self.logprobs:
            chosen.append(one)
            top_ids.append(ids[None])
            top.append(values[None])
        return TokenLogprobs(
            np.array(chosen, np.float32), np.concatenate(top_ids), np.concatenate(top)
        )
