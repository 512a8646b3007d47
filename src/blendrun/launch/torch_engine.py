"""The engine of a rank: the model, loaded once, in this process or a tensor-parallel group that
follows it; one loop for each window.
"""

from dataclasses import replace
from typing import Any

from blendrun.data.answer_keys import read_keys
from blendrun.data.results import RankJournal
from blendrun.data.unfinished import read_unfinished
from blendrun.engine.assembly import RankShare, assemble
from blendrun.engine.deadline import Deadline
from blendrun.engine.devices import check_devices, takes_gpu
from blendrun.engine.kv_memory import free_bytes
from blendrun.engine.loaded_model import find_model
from blendrun.engine.loop import RunLoop
from blendrun.launch.messages import OpenWindow, Running
from blendrun.launch.rank_feed import RankFeed
from blendrun.launch.tensor_group import load_model
from blendrun.launch.window_requests import window_requests
from blendrun.launch.worker import RankJob
from blendrun.schedule.plan_file import read_header
from blendrun.tree.prefix_tree import Int32


class TorchEngine:
    def __init__(self, job: RankJob) -> None:
        """Loads the model. Raises PlanError where it is not the plan's."""
        self._job = job
        self._plan, _ = read_header(job.plan_path)
        self._deadline = Deadline(job.command_begin_s, job.settings.time_limit_s)
        tp = job.settings.tp or 1
        check_devices(job.settings.device, tp, job.num_near)
        files = find_model(self._plan, job.settings)
        self._model = load_model(files, job.settings, job.rank * tp)
        self._keys = read_keys(job.run_dir)

    def window(
        self, opened: OpenWindow, requests: Int32, journal: RankJournal, feed: RankFeed
    ) -> tuple[RunLoop, Running]:
        job = self._job
        plan, everyone = window_requests(job, self._plan, opened, self._keys)
        made = assemble(
            plan,
            replace(job.settings, kv_memory=self._kv_memory()),
            self._model,
            everyone,
            opened.pending,
            read_unfinished(job.run_dir),
            journal,
            job.attempt,
            opened.begin_s,
            self._deadline,
            lambda _: None,
            RankShare(job.rank, job.num_near, requests, feed),
        )
        environment: dict[str, Any] = {**made.environment, "dp": job.num_ranks}
        return made.loop, Running(environment, made.num_continued)

    def _kv_memory(self) -> int | None:
        """What each process of this rank may take, bytes; None: what its GPU has."""
        settings = self._job.settings
        if settings.kv_memory is not None or takes_gpu(settings.device):
            return settings.kv_memory
        return free_bytes(self._job.num_near * (settings.tp or 1))


def open_engine(job: RankJob) -> TorchEngine:
    return TorchEngine(job)
