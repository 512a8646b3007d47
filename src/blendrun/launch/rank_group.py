"""Answers the windows of an attempt on several ranks, whose processes live through all of them."""

import time
from threading import Thread

from blendrun.engine.attempt import WindowWork
from blendrun.launch.launcher import Launcher
from blendrun.launch.rank_processes import RankProcesses
from blendrun.launch.window_run import WindowRun
from blendrun.schedule.compile_batcher import compile_batcher

TORCH_ENGINE = "blendrun.launch.torch_engine:open_engine"


class RankGroup:
    """`Ranks` of `engine.attempt`, started by a launcher."""

    def __init__(self, launcher: Launcher, num_ranks: int, engine: str = TORCH_ENGINE) -> None:
        """`engine`: see `RankJob`."""
        # ranks wait for it, if they have loaded their model before
        Thread(target=compile_batcher, daemon=True).start()
        self._processes = RankProcesses(launcher, num_ranks, engine)

    def answer(self, work: WindowWork) -> float:
        """Answer all of `work`, as `engine.attempt.Ranks`.

        Raises:
            BackendError: every rank has died too often.
            what a rank fails with.
        """
        window = WindowRun(self._processes, work)
        try:
            window.run()
        finally:
            if window.is_over:
                window.close()
        return window.begin_s or time.monotonic()

    def close(self) -> None:
        """End all processes; those that do not end by themselves in time are killed."""
        self._processes.close()
