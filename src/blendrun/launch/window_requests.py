"""What a rank reads of a window: its plan, and all of its requests."""

from dataclasses import replace

from blendrun.data.answer_keys import AnswerKeys
from blendrun.engine.policy import with_policy
from blendrun.engine.requests import EngineRequests
from blendrun.launch.messages import OpenWindow
from blendrun.launch.worker import RankJob
from blendrun.schedule.plan_file import read_plan, window_paths
from blendrun.schedule.plan_record import Plan


def window_requests(
    job: RankJob, plan: Plan, opened: OpenWindow, keys: AnswerKeys
) -> tuple[Plan, EngineRequests]:
    """In the order of the policy that the job asks for, with the outputs seen before the window.

    `plan` is that of the whole job, `keys` are the run's (`read_keys`).
    """
    stored = read_plan(window_paths(job.plan_path, plan)[opened.number])
    requests = EngineRequests.of(stored, job.settings.ignore_eos, keys)
    plan, requests = with_policy(plan, requests, job.settings.policy)
    return plan, replace(requests, seen=(opened.seen_request, opened.seen_output))
