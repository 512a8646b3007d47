"""Greedy requests with equal prompts and parameters: who runs for whom."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from blendrun.engine.twins import find_twins
from tiny_jobs import tree_of

REQUEST = st.fixed_dictionaries(
    {
        "prompt": st.lists(st.integers(0, 1), min_size=1, max_size=2),
        "temperature": st.sampled_from([0.0, 0.0, 1.0]),
        "max_tokens": st.integers(1, 2),
        "presence_penalty": st.sampled_from([0.0, 0.5]),
        "stop": st.sampled_from([(), (), ("a",), ("b",)]),
    }
)
OFF = {
    "ignore_eos": False,
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "logprobs": -1,
    "prompt_logprobs": -1,
    "score_start": -1,
}


def columns(jobs: list[dict[str, Any]]) -> Any:
    def column(name: str) -> np.ndarray:
        return np.array([job.get(name, OFF.get(name)) for job in jobs])

    names = (*OFF, "temperature", "max_tokens", "presence_penalty")
    return SimpleNamespace(
        tree=tree_of([job["prompt"] for job in jobs]),
        stop={i: job["stop"] for i, job in enumerate(jobs) if job["stop"]},
        stop_token_ids={},
        logit_bias={},
        structure={},
        **{name: column(name) for name in names},
    )


@given(jobs=st.lists(REQUEST, min_size=1, max_size=12), seed=st.integers(0, 9))
def test_equal_greedy_requests_run_once_and_all_others_run(jobs: list[dict[str, Any]], seed: int):
    rng = np.random.default_rng(seed)
    pending = rng.permutation(len(jobs))[: rng.integers(1, len(jobs) + 1)].astype(np.int32)
    found = find_twins(columns(jobs), pending)
    groups: dict[Any, list[int]] = {}
    for request in pending.tolist():
        job = jobs[request]
        own = request if job["temperature"] > 0 else None
        key = (own, tuple(job["prompt"]), job["max_tokens"], job["presence_penalty"], job["stop"])
        groups.setdefault(key, []).append(request)
    # the first in planned order runs
    assert found.running.tolist() == [group[0] for group in groups.values()]
    assert {first: others.tolist() for first, others in found.others.items()} == {
        group[0]: group[1:] for group in groups.values() if len(group) > 1
    }
