"""Simulated ranks under the real coordinator: balance, hand-over, stragglers, deaths."""

from dataclasses import replace

import numpy as np
import pytest

from blendrun.cost.cost_model import CostModel
from blendrun.cost.hardware import HardwareProfile
from blendrun.cost.model_shape import ModelShape
from blendrun.engine import simulation as log
from blendrun.engine.simulated_job import Outcome, SimulatedJob, SimulateOptions
from blendrun.errors import BackendError, InputError
from blendrun.launch.coordinator import MOST_TRIALS
from blendrun.launch.simulated_ranks import Fault, simulate_job
from blendrun.schedule.orders import POLICIES
from blendrun.schedule.partition import partition
from tiny_jobs import tree_of

SHAPE = ModelShape.load("llama-3.1-8b")
MACHINE = HardwareProfile.load("paper-a100")


def machine(kv_tokens: int = 20_000) -> CostModel:
    hardware = replace(MACHINE, kv_memory_bytes=131072.0 * kv_tokens)
    return CostModel(SHAPE, hardware, 1, "paper")


def job_of(output_len: np.ndarray, seed: int = 0, known: bool = True) -> SimulatedJob:
    """Requests below 8 shared prefixes of 30 tokens."""
    rng = np.random.default_rng(seed)
    heads = rng.integers(10, 1000, (8, 30))
    prompts = [
        [*heads[i % 8].tolist(), *rng.integers(10, 1000, int(rng.integers(5, 60))).tolist()]
        for i in range(len(output_len))
    ]
    output = output_len.astype(np.int32)
    most = np.full(len(output), 2 * int(output.max(initial=1)), np.int32)
    return SimulatedJob(tree_of(prompts), output, most, np.minimum(most, 64).astype(np.int32),
                        np.full(len(output), known))  # fmt: skip


def mixed_lengths(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(2, 60, n)


def check_each_once(outcome: Outcome, num_requests: int) -> None:
    answered = np.concatenate([np.zeros(0, np.int32), *outcome.parts])
    assert np.array_equal(np.sort(answered), np.arange(num_requests))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("dp", [2, 4])
def test_every_request_is_answered_once_in_every_policy(policy: str, dp: int):
    job = job_of(mixed_lengths(120), known=False)
    outcome = simulate_job(job, machine(3000), SimulateOptions(policy, dp=dp))
    check_each_once(outcome, 120)
    decodes = sum(rank.steps[:, log.DECODE].sum() for rank in outcome.ranks)
    assert decodes == job.output_len.sum()
    for rank in outcome.ranks:
        assert rank.state.counts["free_pages"] == rank.state.limits["num_pages"]
        assert rank.state.counts["num_waiting"] == 0


@pytest.mark.parametrize(("num_requests", "dp"), [(7, 4), (1, 4), (3, 2)])
def test_ranks_without_requests_do_not_start(num_requests: int, dp: int):
    job = job_of(mixed_lengths(num_requests))
    outcome = simulate_job(job, machine(), SimulateOptions(dp=dp))
    check_each_once(outcome, num_requests)
    assert len(outcome.ranks) <= min(num_requests, dp)


@pytest.mark.parametrize("dp", [2, 3])
@pytest.mark.parametrize("known", [True, False])
def test_an_input_whose_first_half_is_ten_times_longer_ends_together(dp: int, known: bool):
    lengths = np.concatenate([np.full(600, 100), np.full(600, 10)])
    job = job_of(lengths, known=known)
    outcome = simulate_job(job, machine(), SimulateOptions(dp=dp))
    check_each_once(outcome, 1200)
    ends = [rank.seconds for rank in outcome.ranks]
    assert min(ends) > 0.95 * max(ends)


@pytest.mark.parametrize("dp", [2, 3])
@pytest.mark.parametrize("known", [True, False])
def test_an_input_whose_first_half_is_ten_times_longer_is_divided_evenly(dp: int, known: bool):
    job = job_of(np.concatenate([np.full(600, 100), np.full(600, 10)]), known=known)
    lengths = job.output_len if known else job.prior
    sequence = np.arange(1200, dtype=np.int32)
    parts = partition(job.tree, sequence, lengths, machine(), dp, np.full(1200, not known))
    work_s = [part.predicted_s for part in parts]
    assert max(work_s) < 1.02 * min(work_s)


def test_a_slow_rank_hands_work_over():
    job = job_of(np.random.default_rng(0).integers(2, 8, 2400), known=False)
    even = simulate_job(job, machine(4000), SimulateOptions(dp=4))
    slow = simulate_job(job, machine(4000), SimulateOptions(dp=4, rank_speed={0: 0.5}))
    check_each_once(slow, 2400)
    # a job of a second and a half: the slow rank's last requests take a tenth of it
    assert slow.seconds < 1.12 * even.seconds * 4 / 3.5
    assert len(slow.parts[0]) < 0.7 * len(slow.parts[1])


def test_a_rank_that_dies_loses_nothing_and_repeats_only_what_ran():
    job = job_of(mixed_lengths(400))
    whole = simulate_job(job, machine(), SimulateOptions(dp=2))
    outcome = simulate_job(
        job, machine(), SimulateOptions(dp=2), faults=[Fault(1, whole.seconds / 2)]
    )
    check_each_once(outcome, 400)
    assert len(outcome.ranks) == 3
    assert whole.seconds < outcome.seconds < 2 * whole.seconds


def test_a_rank_that_dies_again_and_again_leaves_its_rows_to_the_other():
    job = job_of(mixed_lengths(400))
    whole = simulate_job(job, machine(), SimulateOptions(dp=2))
    faults = [Fault(1, i * whole.seconds / 100) for i in range(1, 40)]
    outcome = simulate_job(job, machine(), SimulateOptions(dp=2), faults=faults)
    answered = np.concatenate(outcome.parts)
    assert len(np.unique(answered)) == len(answered)
    # what happens to run alone in two of so many deaths is condemned, and nothing else is lost
    assert 400 - MOST_TRIALS <= len(answered) <= 400


def test_when_all_ranks_die_too_often_the_run_fails():
    job = job_of(mixed_lengths(400))
    faults = [Fault(rank, 0.0) for _ in range(40) for rank in (0, 1)]
    with pytest.raises(BackendError, match="died too often"):
        simulate_job(job, machine(), SimulateOptions(dp=2), faults=faults)


def test_speeds_are_of_ranks_that_there_are():
    with pytest.raises(InputError, match="rank_speed 2=1"):
        SimulateOptions(dp=2, rank_speed={2: 1.0})
