"""What a coordinator and its ranks say to each other: columns, never an object per request.

Requests are numbers of the window's plan. A message is pickled as a whole: a few arrays.
"""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from blendrun.engine.rank_figures import RankFigures
from blendrun.schedule.step.outputs import Outputs
from blendrun.tree.prefix_tree import Int32


@dataclass(frozen=True, slots=True, eq=False)
class OpenWindow:
    """To a rank: the next requests are those of this window."""

    number: int
    pending: Int32  # requests of all ranks without an answer, in planned order
    seen_request: Int32  # output lengths that are known: of requests alike, …
    seen_output: Int32  # … and their tokens
    begin_s: float  # from when on the monotonic clock steps are timed


@dataclass(frozen=True, slots=True, eq=False)
class Take:
    """To a rank: requests to answer, too."""

    requests: Int32
    answers: pa.Table | None = None  # UNFINISHED_SCHEMA: what some of them have so far


@dataclass(frozen=True, slots=True, eq=False)
class Learn:
    """To a rank: all outputs of the others so far."""

    outputs: Outputs


@dataclass(frozen=True, slots=True, eq=False)
class Give:
    """To a rank: give these back where they have not begun; answered by `Gave`."""

    requests: Int32


@dataclass(frozen=True, slots=True)
class GiveRunning:
    """To a rank: give requests back that run; answered by `Gave`."""

    memory_s: float  # seconds of KV reads that they have left to do together, at most
    room: int  # tokens that they have so far, likewise


@dataclass(frozen=True, slots=True)
class CloseWindow:
    """To a rank: every request of the window is answered."""


@dataclass(frozen=True, slots=True)
class Stop:
    """To a rank: save and end, whatever there is left to do."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """From a rank: it is ready for requests."""


@dataclass(frozen=True, slots=True)
class Running:
    """From a rank: what runs there, and why (`environment` of the manifest)."""

    environment: dict[str, Any]
    num_continued: int


@dataclass(frozen=True, slots=True, eq=False)
class Begun:
    """From a rank: these come in, and are computed next."""

    requests: Int32


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """From a rank: how far it is."""

    ended: Int32  # requests answered since the last report, safe on disk
    figures: RankFigures


@dataclass(frozen=True, slots=True)
class Closed:
    """From a rank: nothing of the window is left with it."""


@dataclass(frozen=True, slots=True, eq=False)
class Gave:
    """From a rank: what it gives back."""

    requests: Int32
    answers: pa.Table | None = None  # UNFINISHED_SCHEMA: what some of them have so far


@dataclass(frozen=True, slots=True)
class Failed:
    """From a rank: an error that ends the run."""

    kind: str  # class name in `blendrun.errors`
    message: str
    hint: str | None


ToRank = OpenWindow | Take | Learn | Give | GiveRunning | CloseWindow | Stop
FromRank = Loaded | Running | Begun | Report | Gave | Closed | Failed
