"""What a coordinator knows of one rank."""

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt

from blendrun.engine.rank_figures import RankFigures
from blendrun.launch.rest import NOTHING, Rest
from blendrun.schedule.step.outputs import Outputs
from blendrun.tree.prefix_tree import Int32

_FORGET = 0.9  # per report: a rank is as fast as it was lately


class Phase(Enum):
    IDLE = "idle"  # never started: there are fewer requests than ranks
    STARTING = "starting"
    UP = "up"
    LOST = "lost"  # given up


@dataclass(slots=True)
class RankRecord:
    phase: Phase = Phase.IDLE
    restarts: int = 0  # after deaths that tell nothing, …
    trials: int = 0  # … and after those of a group of suspects
    on_trial: Int32 | None = None  # the group of suspects that runs alone
    gives_to: int | None = None  # it was asked to give requests for this rank, …
    gets: bool = False  # … and this one waits for them
    reports: int = 0
    had: int = 0  # requests that it was given last
    running: int = 0
    waiting: int = 0
    rest: Rest = NOTHING
    is_learning: bool = False  # it cannot say yet what is left
    room: int = 0  # KV tokens that it could hold, too
    mean_len: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    output_tokens: int = 0  # of the process that runs, …
    earlier_tokens: int = 0  # … and of those before
    outputs: Outputs = field(default_factory=Outputs.nothing)  # likewise
    earlier_outputs: Outputs = field(default_factory=Outputs.nothing)
    _stepped_s: float = 0.0  # lately
    _expected_s: float = 0.0
    _before: tuple[float, float] = (0.0, 0.0)

    @property
    def is_dry(self) -> bool:
        return self.running + self.waiting == 0

    @property
    def speed(self) -> float:
        """Seconds of work, as the cost model has it, in a second."""
        return self._expected_s / self._stepped_s if self._stepped_s > 0 else 1.0

    @property
    def stepped_s(self) -> float:
        """What the steps of its process took together."""
        return self._before[0]

    def note(self, figures: RankFigures) -> None:
        self.reports += 1
        self.running, self.waiting = figures.running, figures.waiting
        self.rest = Rest(figures.compute_s, figures.memory_s, figures.least_s)
        self.is_learning, self.room = figures.is_learning, figures.room
        self.mean_len, self.output_tokens = figures.mean_len, figures.output_tokens
        self.outputs = figures.outputs
        now = (figures.stepped_s, figures.expected_s)
        self._stepped_s = _FORGET * self._stepped_s + now[0] - self._before[0]
        self._expected_s = _FORGET * self._expected_s + now[1] - self._before[1]
        self._before = now

    def forget_process(self) -> None:
        """Its process is gone."""
        self.on_trial, self.gives_to, self.gets = None, None, False
        self.running = self.waiting = self.had = self.reports = 0
        self.rest, self.is_learning, self.room = NOTHING, False, 0
        self.earlier_tokens += self.output_tokens
        self.output_tokens = 0
        self.earlier_outputs = Outputs.total([self.earlier_outputs, self.outputs.without_running()])
        self.outputs = Outputs.nothing()
        self._before = (0.0, 0.0)
