"""Graphs: work of a device that is captured once and then started as one, and what can be captured.

A captured step reads its token ids, positions and page tables where they were when it was captured;
the next step's are written there. Who captures is behind an interface, so that tests can.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from blendrun.engine.decoder import Decoder
from blendrun.engine.decoder_weights import ExpertWeights
from blendrun.engine.paged_attention import StepReads, StepWrites
from blendrun.errors import InputError
from blendrun.tree.prefix_tree import Int32, Int64

GraphMode = Literal["auto", "on", "off"]


class Graph(Protocol):
    @property
    def made(self) -> Tensor:
        """What the captured work gave; each replay writes it anew, at the same place."""

    def replay(self) -> None:
        """Queue all of the work again."""


class GraphMaker(Protocol):
    def __call__(self, work: Callable[[], Tensor]) -> Graph:
        """Capture `work`, which has run before; what it computes is there after a replay."""


class StaticDecodes(Protocol):
    """Attention of so many decodes whose index arrays stay where they are; run by every layer."""

    @property
    def writes(self) -> StepWrites: ...

    @property
    def reads(self) -> StepReads: ...

    def fits(self, context_len: Int32) -> bool:
        """Whether the pages of these contexts have room."""

    def move_to(self, context_len: Int32, page_table: Int32, slots: Int64) -> None:
        """The next step's: [S] tokens, [S, max_pages], and [S] where each token's K and V go."""


class StaticAttention(Protocol):
    def static_decodes(
        self, k_cache: Tensor, num_heads: int, num_seqs: int, scale: float
    ) -> StaticDecodes:
        """For `num_seqs` decodes over caches like this layer's; one of all is used at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class Capture:
    """How decodes are captured."""

    attention: StaticAttention
    maker: GraphMaker


def choose_graphs(
    mode: GraphMode, capture: Capture | None, why_not: str, decoder: Decoder
) -> tuple[Capture | None, str]:
    """What captures decode-only steps, None: nothing; and why, in one line.

    `why_not`: why there is no `capture`.

    Raises:
        InputError: it is asked for and cannot be had.
    """
    problem = None
    if capture is None:
        problem = why_not
    elif decoder.group.shard.size > 1:
        problem = "sums over tensor-parallel ranks are not captured"
    elif any(isinstance(layer.mlp, ExpertWeights) for layer in decoder.weights.layers):
        problem = "the sizes of experts' products are not known ahead"
    if problem is not None:
        if mode == "on":
            raise InputError(f"--graphs on: {problem}", "leave it out")
        return None, problem
    if mode == "off":
        return None, "off was asked for"
    return capture, "steps of decodes that read no shared prefix together"
