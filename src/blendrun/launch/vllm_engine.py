"""The engine of a rank that computes with vLLM: started once, one loop for each window."""

import os
from typing import Any

from blendrun.data.answer_keys import read_keys
from blendrun.data.results import RankJournal
from blendrun.data.unfinished import read_unfinished
from blendrun.engine.assembly import RankShare
from blendrun.engine.deadline import Deadline
from blendrun.engine.loaded_model import find_model
from blendrun.engine.loop import RunLoop
from blendrun.engine.vllm import prepare_environment
from blendrun.engine.vllm_assembly import JobSize, LoadedVllm, assemble_vllm
from blendrun.launch.messages import OpenWindow, Running
from blendrun.launch.rank_feed import RankFeed
from blendrun.launch.window_requests import window_requests
from blendrun.launch.worker import RankJob
from blendrun.schedule.plan_file import read_header
from blendrun.tree.prefix_tree import Int32


class VllmEngine:
    def __init__(self, job: RankJob) -> None:
        """Starts vLLM. Raises PlanError where the model is not the plan's."""
        plan, _ = read_header(job.plan_path)
        self._job, self._plan = job, plan
        self._deadline = Deadline(job.command_begin_s, job.settings.time_limit_s)
        tp = job.settings.tp or 1
        mine = range(job.rank * tp, (job.rank + 1) * tp) if job.num_ranks > 1 else None
        prepare_environment(tp, os.sched_getaffinity(0), mine)
        files = find_model(plan, job.settings)
        size = JobSize.of(job.plan_path, plan)
        self._model = LoadedVllm.load(files, plan, job.settings, size, job.num_near)
        self._keys = read_keys(job.run_dir)

    def window(
        self, opened: OpenWindow, requests: Int32, journal: RankJournal, feed: RankFeed
    ) -> tuple[RunLoop, Running]:
        job = self._job
        plan, everyone = window_requests(job, self._plan, opened, self._keys)
        made = assemble_vllm(
            plan,
            job.settings,
            self._model,
            everyone,
            opened.pending,
            read_unfinished(job.run_dir),
            journal,
            job.attempt,
            opened.begin_s,
            self._deadline,
            RankShare(job.rank, job.num_near, requests, feed),
        )
        environment: dict[str, Any] = {**made.environment, "dp": job.num_ranks}
        return made.loop, Running(environment, made.num_continued)


def open_engine(job: RankJob) -> VllmEngine:
    return VllmEngine(job)
