"""Penalties and bias on a batch, against one token after the other."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blendrun.engine.logit_edits import LogitEdits
from blendrun.engine.token_counts import TokenCounts

VOCAB = 12
tokens = st.lists(st.integers(0, VOCAB - 1), max_size=10)
rows = st.fixed_dictionaries(
    {
        "prompt": tokens,
        "output": tokens,
        "repetition_penalty": st.sampled_from([1.0, 1.3, 0.5]),
        "presence_penalty": st.sampled_from([0.0, 1.5, -0.5]),
        "frequency_penalty": st.sampled_from([0.0, 0.25, -2.0]),
        "logit_bias": st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, 3.0])),
    }
)
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")


def edits(jobs: list[dict]) -> LogitEdits:
    columns = {name: np.array([job[name] for job in jobs], np.float32) for name in PENALTIES}
    off = [job["logit_bias"] == {} for job in jobs]
    for name, value in zip(PENALTIES, (1, 0, 0), strict=True):
        off = [same and job[name] == value for same, job in zip(off, jobs, strict=True)]
    bias = {i: tuple(job["logit_bias"].items()) for i, job in enumerate(jobs) if job["logit_bias"]}
    requests = SimpleNamespace(logit_bias=bias, has_edits=~np.array(off, bool), **columns)

    def token_counts(request: int) -> TokenCounts:
        job = jobs[request]
        counts = TokenCounts(job["prompt"] if job["repetition_penalty"] != 1 else ())
        for n in range(len(job["output"]) + 1):
            counts.catch_up(job["output"][:n])
        return counts

    return LogitEdits(requests, SimpleNamespace(token_counts=token_counts))


def expected(job: dict, logits: list[float]) -> list[float]:
    made = []
    for token, logit in enumerate(logits):
        value = logit + job["logit_bias"].get(token, 0.0)
        if token in job["prompt"] or token in job["output"]:
            penalty = job["repetition_penalty"]
            value = value / penalty if value > 0 else value * penalty
        count = job["output"].count(token)
        value -= job["frequency_penalty"] * count + job["presence_penalty"] * (count > 0)
        made.append(value)
    return made


@given(jobs=st.lists(rows, min_size=1, max_size=5), seed=st.integers(0, 99))
def test_every_row_is_changed_by_its_own_parameters(jobs: list[dict], seed: int):
    logits = torch.randn(len(jobs), VOCAB, generator=torch.Generator().manual_seed(seed))
    wanted = [expected(job, row) for job, row in zip(jobs, logits.tolist(), strict=True)]
    request = np.random.default_rng(seed).permutation(len(jobs)).astype(np.int32)
    changed = logits[torch.from_numpy(request).long()]
    edits(jobs).apply(changed, request)
    torch.testing.assert_close(changed, torch.tensor(wanted)[torch.from_numpy(request).long()])


def test_repetition_is_that_of_transformers():
    from transformers import RepetitionPenaltyLogitsProcessor

    job = {"prompt": [1, 2, 2, 3], "output": [5, 3, 5], "repetition_penalty": 1.7}
    job |= {"presence_penalty": 0.0, "frequency_penalty": 0.0, "logit_bias": {}}
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(1))
    known = torch.tensor([job["prompt"] + job["output"]])
    reference = RepetitionPenaltyLogitsProcessor(1.7)(known, logits.clone())
    edits([job]).apply(logits, np.zeros(1, np.int32))
    torch.testing.assert_close(logits, reference)


def test_rows_that_ask_for_nothing_are_not_touched():
    plain = {"prompt": [1], "output": [1], "logit_bias": {}}
    plain |= {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    untouched = edits([plain])
    untouched._generations = None  # would be asked for counts
    logits = torch.zeros(3, VOCAB)
    untouched.apply(logits, np.zeros(3, np.int32))
    assert not logits.any()


@pytest.mark.parametrize("length", [0, 1, 63, 64, 200])
def test_counts_grow_with_the_answer(length: int):
    drawn = np.random.default_rng(0).integers(0, 150, length).tolist()
    counts = TokenCounts(np.array([7, 7, 500], np.int32))
    for n in range(0, length + 1, 3):
        counts.catch_up(drawn[:n])
    counts.catch_up(drawn)
    found = dict(zip(counts.ids.tolist(), counts.counts.tolist(), strict=True))
    assert found == {7: 0, 500: 0} | {t: drawn.count(t) for t in drawn}
