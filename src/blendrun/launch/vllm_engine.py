"""The engine of a rank that computes with vLLM: started once, one loop for each window."""

import os
from dataclasses import replace
from typing import Any

from blendrun.data.answer_keys import read_keys
from blendrun.data.results import RankJournal
from blendrun.data.unfinished import read_unfinished
from blendrun.engine.assembly import RankShare, find_model
from blendrun.engine.deadline import Deadline
from blendrun.engine.loop import RunLoop
from blendrun.engine.policy import with_policy
from blendrun.engine.requests import EngineRequests
from blendrun.engine.vllm import prepare_environment
from blendrun.engine.vllm_assembly import JobSize, LoadedVllm, assemble_vllm
from blendrun.launch.messages import OpenWindow, Running
from blendrun.launch.rank_feed import RankFeed
from blendrun.launch.worker import RankJob
from blendrun.schedule.plan_file import read_header, read_plan, window_paths
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
        stored = read_plan(window_paths(job.plan_path, self._plan)[opened.number])
        everyone = EngineRequests.of(stored, job.settings.ignore_eos, self._keys)
        plan, everyone = with_policy(self._plan, everyone, job.settings.policy)
        made = assemble_vllm(
            plan,
            job.settings,
            self._model,
            replace(everyone, seen=(opened.seen_request, opened.seen_output)),
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
