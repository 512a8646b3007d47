"""Virtual time: every token is priced once, and no estimate makes a run livelock."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from blendrun.cost.cost_model import CostModel
from blendrun.cost.hardware import HardwareProfile
from blendrun.cost.model_shape import ModelShape
from blendrun.engine import simulation as log
from blendrun.engine.simulated_job import SimulatedJob, SimulateOptions
from blendrun.launch.simulated_ranks import simulate_job
from blendrun.schedule.orders import POLICIES
from blendrun.tree.build import Topology, arrange
from blendrun.tree.prefix_tree import PrefixTree

SHAPE = ModelShape.load("llama-3.1-8b")
MACHINE = HardwareProfile.load("paper-a100")


def tree_with_groups(prefix_len: list[int], group: np.ndarray, own_len: np.ndarray) -> PrefixTree:
    """A tree of one level of shared prefixes; group -1 hangs below the root."""
    n, groups = len(group), len(prefix_len)
    parent = np.where(group < 0, n + groups, n + group)
    depth = own_len + np.where(group < 0, 0, np.array([*prefix_len, 0])[group])
    parents = np.concatenate([parent, np.full(groups + 1, n + groups)])
    depths = np.concatenate([depth, prefix_len, [0]])
    used = np.concatenate([np.isin(np.arange(groups), group), [True]])
    keep = np.concatenate([np.ones(n, bool), used])
    new = np.cumsum(keep) - 1
    topology = Topology(new[parents[keep]].astype(np.int32), depths[keep].astype(np.int32))
    return arrange(topology, np.arange(keep.sum(), dtype=float))


def random_job(seed: int) -> tuple[SimulatedJob, int]:
    """A small mixed job, and KV tokens that hold its longest request with little to spare."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(5, 120))
    groups = int(rng.integers(0, 5))
    group = rng.integers(-1, groups, n) if groups else np.full(n, -1)
    prefix_len = rng.integers(1, 300, groups).tolist()
    long = rng.random(n) < rng.uniform(0, 0.5)
    own_len = np.where(long, rng.integers(5, 50, n), rng.integers(1, 200, n))
    output = np.where(
        long, np.clip(rng.lognormal(5, rng.uniform(0.1, 1.2), n), 20, 2000), rng.integers(1, 9, n)
    ).astype(np.int32)
    tree = tree_with_groups(prefix_len, group, own_len)
    slack = rng.integers(1, 3, n) if rng.random() < 0.5 else np.full(n, 4)
    max_output = (output * slack).astype(np.int32)
    prior = np.minimum(max_output, 256).astype(np.int32)
    job = SimulatedJob(tree, output, max_output, prior, np.zeros(n, bool))
    worst = int((tree.prompt_len + max_output).max()) + 8 + 16 * 4
    return job, int(worst * rng.uniform(1.05, 6))


def machine(kv_tokens: int, **changes: Any) -> CostModel:
    hardware = replace(MACHINE, kv_memory_bytes=131072.0 * kv_tokens, **changes)
    return CostModel(SHAPE, hardware, 1, "paper")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("lengths", ["exact", "survival"])
def test_every_token_is_computed_and_every_context_read_once(policy: str, lengths: str):
    job, _ = random_job(3)
    outcome = simulate_job(job, machine(10**6), SimulateOptions(policy, lengths=lengths), True)
    steps, chunks = outcome.ranks[0].steps, outcome.ranks[0].chunks
    d = job.output_len.astype(float)
    assert steps[:, log.DECODE].sum() == d.sum()
    reads = (job.tree.prompt_len * d + d * (d + 1) / 2).sum()
    prices = log.Machine.of(machine(10**6))
    assert steps[:, log.MEMORY].sum() == pytest.approx(reads * prices.context_s)
    tree = outcome.order.tree
    assert (chunks[:, 3] - chunks[:, 2]).sum() == steps[:, log.PREFILL].sum()
    assert steps[:, log.PREFILL].sum() == tree.num_unique_tokens
    assert steps[:, log.WORK].sum() == pytest.approx(outcome.optimum.shared_compute_s)
    assert (steps[:, log.WORK] <= steps[:, log.COMPUTE] * (1 + 1e-12)).all()
    assert steps[:, log.HEADS].sum() == outcome.output_tokens + len(d)  # the paper's prefill, too
    assert steps[:, log.FINISHED].sum() == len(d)
    assert outcome.practical_frac <= 1


@pytest.mark.parametrize("first", range(0, 500, 100))
def test_wrong_estimates_cost_few_preemptions_and_no_livelock(first: int):
    total = recomputed = 0
    for seed in range(first, first + 100):
        job, kv_tokens = random_job(seed)
        lengths, factor = [("exact", 1 / 3), ("exact", 3.0), ("survival", 1.0), ("static", 1.0)][
            seed % 4
        ]
        options = SimulateOptions(
            policy=["blend", "blend", "dfs", "blendserve", "random"][seed % 5],
            budget="ratio" if seed % 3 else "auto",
            lengths=lengths,
            length_factor=factor,
            page_size=[1, 16][seed % 2],
            seed=seed,
        )
        outcome = simulate_job(job, machine(kv_tokens), options)
        state = outcome.ranks[0].state
        assert state.counts["num_finished"] == len(job.output_len), seed
        assert state.counts["free_pages"] == state.limits["num_pages"], seed
        assert state.requests["num_preempted"].max() <= 4, seed
        total += outcome.prompt_tokens + outcome.output_tokens
        recomputed += outcome.recomputed_tokens
    assert recomputed < 0.02 * total


def test_a_step_costs_what_the_machine_says():
    job, _ = random_job(5)
    cost = machine(10**6, overlap_exponent=1.0, step_overhead_s=0.5)
    steps = simulate_job(job, cost, SimulateOptions("dfs")).ranks[0].steps
    expected = steps[:, log.COMPUTE] + steps[:, log.MEMORY] + 0.5
    assert steps[:, log.SECONDS] == pytest.approx(expected)
    assert (steps[:, log.COMPUTE] >= cost.weight_read_s - 1e-12).all()
    starts = np.concatenate([[0], np.cumsum(steps[:, log.SECONDS])[:-1]])
    assert steps[:, log.START] == pytest.approx(starts)


def test_an_engine_that_does_not_overlap_takes_the_sum():
    job, _ = random_job(5)
    together = simulate_job(job, machine(10**6), SimulateOptions("dfs"))
    apart = simulate_job(job, machine(10**6), SimulateOptions("dfs", overlaps=False))
    steps = apart.ranks[0].steps
    assert steps[:, log.SECONDS] == pytest.approx(steps[:, log.COMPUTE] + steps[:, log.MEMORY])
    assert apart.seconds > together.seconds


def test_ranks_share_the_work():
    rng = np.random.default_rng(0)
    n = 2000
    own, output = rng.integers(10, 600, n), rng.integers(1, 40, n).astype(np.int32)
    tree = tree_with_groups([], np.full(n, -1), own)
    job = SimulatedJob(tree, output, output, output, np.zeros(n, bool))
    one = simulate_job(job, machine(50_000), SimulateOptions(lengths="exact"))
    four = simulate_job(job, machine(50_000), SimulateOptions(lengths="exact", dp=4))
    assert len(four.ranks) == 4
    assert 3.5 < one.seconds / four.seconds <= 4.1


def test_preempted_requests_decode_every_output_once_in_the_papers_convention():
    rng = np.random.default_rng(1)
    n = 60
    output = rng.integers(100, 300, n).astype(np.int32)
    tree = tree_with_groups([], np.full(n, -1), rng.integers(5, 20, n))
    job = SimulatedJob(tree, output, output, output, np.zeros(n, bool))
    options = SimulateOptions("dfs", lengths="exact", length_factor=0.1)
    outcome = simulate_job(job, machine(2500), options)
    assert outcome.preemptions > 0
    assert outcome.ranks[0].steps[:, log.DECODE].sum() == output.sum()


def test_a_shared_prefix_is_read_once_a_step_where_the_machine_does_that():
    output = np.array([5, 5, 5, 9, 7], np.int32)
    group = np.array([0, 0, 0, 0, -1])
    tree = tree_with_groups([100], group, np.array([10, 20, 30, 40, 50]))
    job = SimulatedJob(tree, output, output, output, np.zeros(5, bool))
    hardware = replace(MACHINE, shared_reads=True, shared_attention_flops=1e14)
    options = SimulateOptions("dfs", lengths="exact", chunk_size=4096)
    cost = CostModel(SHAPE, hardware)
    own = simulate_job(job, CostModel(SHAPE, MACHINE), options)
    once = simulate_job(job, cost, options)
    spared = own.ranks[0].steps[:, log.MEMORY] - once.ranks[0].steps[:, log.MEMORY]
    # in the first four steps of decodes three others decode beside the one that reads it
    read_s = 100 * cost.context_s * cost.spared_frac
    assert spared == pytest.approx([0, *[3 * read_s] * 4, *[0] * 4])
    assert 0 < cost.spared_frac < 1
    assert once.optimum.once_memory_s < own.optimum.memory_s == once.optimum.memory_s


@pytest.mark.parametrize("policy", ["blend", "dfs"])
def test_where_nothing_overlaps_the_simulated_engine_does_not(policy: str):
    job, _ = random_job(5)
    cost = machine(10**6, overlap=False, overlap_exponent=1.0)
    outcome = simulate_job(job, cost, SimulateOptions(policy))
    assert not outcome.overlaps
    assert outcome.budget == "fixed"
