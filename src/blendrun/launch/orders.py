"""What a coordinator wants done."""

from dataclasses import dataclass

from blendrun.launch.messages import Give, GiveRunning, Learn, Take


@dataclass(frozen=True, slots=True)
class Start:
    """Start a process for a rank, the first or another one."""

    rank: int


@dataclass(frozen=True, slots=True, eq=False)
class Send:
    rank: int
    message: Take | Learn | Give | GiveRunning


@dataclass(frozen=True, slots=True)
class Condemn:
    """A request becomes an error row: it killed its rank again when it ran alone."""

    request: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """A rank is not started again."""

    rank: int


Order = Start | Send | Condemn | GiveUp
