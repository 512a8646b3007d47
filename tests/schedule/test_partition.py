"""Data-parallel parts: everything once, equal time, the mix alike, little computed twice."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendrun.schedule.partition import Part, partition
from blendrun.tree.prefix_tree import PrefixTree
from tiny_jobs import cost_model, prompt_lists, tree_of

COST = cost_model()


def parts_of(prompts, output_len, parts: int, sequence=None) -> tuple[PrefixTree, list[Part]]:
    tree = tree_of(prompts)
    if sequence is None:
        sequence = tree.leaf_order
    lengths = np.asarray(output_len, np.int32)
    return tree, partition(tree, np.asarray(sequence, np.int32), lengths, COST, parts)


def alone_s(tree: PrefixTree, output_len) -> np.ndarray:
    """Time of each request by itself, with its whole prompt."""
    lengths = np.asarray(output_len)
    compute_s = COST.compute_s(tree.prompt_len, lengths)
    return COST.overlapped_s(compute_s, COST.memory_s(tree.prompt_len, lengths))


def unique_tokens(tree: PrefixTree, requests: np.ndarray) -> int:
    return int(tree.edge_len[tree.count_below(requests) > 0].sum())


def assert_equal_but_for_single_requests(tree: PrefixTree, output_len, parts: list[Part]) -> None:
    """Times are within 2 % of equal, and within the longest request of those that share a rank.

    Equal is what a part takes that has an equal share of all parts' compute and KV reads. Ranks
    with one request that takes longer are left out: a request is not divided.
    """
    alone = alone_s(tree, output_len)
    while True:
        compute_s = np.mean([part.compute_s for part in parts])
        equal_s = COST.overlapped_s(compute_s, np.mean([part.memory_s for part in parts]))
        shared = [p for p in parts if len(p.requests) != 1 or alone[p.requests[0]] <= equal_s]
        if len(shared) == len(parts):
            break
        parts = shared
    if not parts:
        return
    forced_s = max(alone[part.requests].max(initial=0.0) for part in parts)
    for part in parts:
        assert abs(part.predicted_s - equal_s) <= 0.02 * equal_s + forced_s


@st.composite
def jobs(draw: st.DrawFn):
    longer = draw(st.sampled_from([1, 60, 600]))
    prompts = [
        [token for token in prompt for _ in range(longer)]
        for prompt in draw(prompt_lists(min_size=0, max_size=40))
    ]
    n = len(prompts)
    length = st.sampled_from([1, 2, 50, 500, 5000])
    output_len = draw(st.lists(length, min_size=n, max_size=n))
    return prompts, output_len, draw(st.permutations(range(n))), draw(st.integers(1, 9))


@given(jobs())
def test_parts_are_equal_and_keep_prefixes_together(job):
    prompts, output_len, sequence, parts = job
    tree, made = parts_of(prompts, output_len, parts, sequence)
    assert len(made) == parts
    assert sorted(r for part in made for r in part.requests) == list(range(len(prompts)))
    place = {request: i for i, request in enumerate(sequence)}
    for part in made:
        places = [place[r] for r in part.requests.tolist()]
        assert places == sorted(places)
    repeated = sum(unique_tokens(tree, part.requests) for part in made) - tree.num_unique_tokens
    longest_path = tree.edge_start[tree.leaf_node].max(initial=0)
    assert repeated <= (2 * parts - 1) * longest_path
    assert_equal_but_for_single_requests(tree, output_len, made)


@given(jobs(), st.booleans(), st.data())
def test_a_part_of_the_requests_is_divided_as_evenly(job, is_guessed, data):
    prompts, output_len, sequence, parts = job
    left = data.draw(st.lists(st.sampled_from(sequence), unique=True)) if prompts else []
    tree = tree_of(prompts)
    guessed = np.full(len(prompts), is_guessed)
    chosen, lengths = np.array(left, np.int32), np.array(output_len, np.int32)
    made = partition(tree, chosen, lengths, COST, parts, guessed)
    assert sorted(r for part in made for r in part.requests) == sorted(left)
    if not is_guessed:
        assert_equal_but_for_single_requests(tree, output_len, made)


@given(jobs())
def test_a_part_says_what_it_takes(job):
    prompts, output_len, sequence, parts = job
    tree, made = parts_of(prompts, output_len, parts, sequence)
    lengths = np.asarray(output_len, np.int32)
    for part in made:
        below = tree.count_below(part.requests) > 0
        prompt_len, outputs = tree.prompt_len[part.requests], lengths[part.requests]
        compute_s = COST.prefill_s(tree.edge_start[below], tree.depth[below]).sum()
        compute_s += (COST.head_s(1) + COST.decode_compute_s(prompt_len, outputs)).sum()
        assert part.compute_s == pytest.approx(compute_s)
        assert part.memory_s == pytest.approx(COST.memory_s(prompt_len, outputs).sum())
        both_s = float(COST.overlapped_s(part.compute_s, part.memory_s))
        assert part.predicted_s == pytest.approx(both_s)


def mixed_job(n: int = 6000) -> tuple[list[list[int]], list[int]]:
    """Chats with long answers and questions on 20 subjects with long prefixes."""
    rng = np.random.default_rng(1)
    subjects = [[int(t)] * 800 for t in rng.integers(10, 1000, 20)]
    prompts = [[*subjects[i % 20], 1000 + i] for i in range(n // 2)]
    prompts += [[1, *rng.integers(2, 9, 100).tolist()] for _ in range(n // 2)]
    output_len = [1 + i % 9 for i in range(n // 2)]
    output_len += np.minimum(rng.lognormal(6, 1, n // 2), 5000).astype(int).tolist()
    return prompts, output_len


@pytest.mark.parametrize("parts", [2, 4, 7])
def test_parts_of_a_mixed_job_have_equal_time_and_the_jobs_mix(parts: int):
    tree, made = parts_of(*mixed_job(), parts)
    for figure, off in (("predicted_s", 0.02), ("compute_s", 0.05), ("memory_s", 0.05)):
        values = np.array([getattr(part, figure) for part in made])
        assert np.abs(values / values.mean() - 1).max() < off, figure
    repeated = sum(unique_tokens(tree, part.requests) for part in made) - tree.num_unique_tokens
    assert repeated <= (parts - 1) * 802  # one subject and the chats' first token for each cut


def test_more_ranks_than_requests_leave_some_without():
    _, made = parts_of([[1, 2], [1, 3], [4]], [5, 50, 500], 8)
    assert sorted(len(part.requests) for part in made) == [0] * 5 + [1] * 3
    assert sorted(part.predicted_s for part in made)[:5] == [0.0] * 5


@pytest.mark.parametrize("parts", [1, 3])
def test_no_requests_are_divided_into_empty_parts(parts: int):
    _, made = parts_of([], [], parts)
    assert [len(part.requests) for part in made] == [0] * parts
    assert [part.predicted_s for part in made] == [0.0] * parts


def test_a_request_that_dwarfs_the_rest_is_alone_and_the_rest_is_balanced():
    prompts = [[1, i] for i in range(401)]
    _, made = parts_of(prompts, [100] * 200 + [30_000] + [100] * 200, 5)
    assert [part.requests.tolist() for part in made if 200 in part.requests] == [[200]]
    assert sorted(len(part.requests) for part in made) == [1, 100, 100, 100, 100]


def test_equal_requests_are_divided_by_number():
    _, made = parts_of([[i] * 9 for i in range(120)], [30] * 120, 8)
    assert [len(part.requests) for part in made] == [15] * 8


def test_a_job_without_kv_reads_is_divided_by_compute():
    _, made = parts_of([[i] * (10 + i % 7) for i in range(700)], [1] * 700, 4)
    compute_s = [part.compute_s for part in made]
    assert max(compute_s) < 1.02 * min(compute_s)


def test_every_rank_computes_a_prefix_that_all_share_once():
    prefix = [9] * 5000
    tree, made = parts_of([[*prefix, i] for i in range(64)], [200 + i for i in range(64)], 4)
    tokens = [unique_tokens(tree, part.requests) for part in made]
    assert sum(tokens) == tree.num_unique_tokens + 3 * 5000
    assert max(part.predicted_s for part in made) < 1.05 * min(part.predicted_s for part in made)


def test_a_deep_trie_is_cut_into_equal_parts():
    prompts = [[1] * i for i in range(1, 800)]
    tree, made = parts_of(prompts, [20] * len(prompts), 4)
    assert_equal_but_for_single_requests(tree, [20] * len(prompts), made)


def test_guessed_lengths_divide_every_top_subtree_evenly():
    """Nobody knows that the second group's outputs are long: no rank may get all of them."""
    prompts = [[1 + i % 2, i] for i in range(400)]
    tree = tree_of(prompts)
    guess = np.full(400, 256, np.int32)
    parts = partition(tree, tree.leaf_order, guess, cost_model(), 4, np.ones(400, bool))
    for part in parts:
        groups = np.bincount(part.requests % 2, minlength=2)
        assert groups.tolist() == [50, 50]
    seconds = [part.predicted_s for part in parts]
    assert max(seconds) <= 1.02 * min(seconds)
    assert sorted(r for part in parts for r in part.requests.tolist()) == list(range(400))


@pytest.mark.parametrize(("prefix", "most_repeats"), [(400, 6), (20, 70)])
def test_guessed_lengths_part_subtrees_only_where_their_prefixes_are_cheap(
    prefix: int, most_repeats: int
):
    """Ten subjects of 40 questions and chats on eight ranks, of which two begin with a subject."""
    prompts = [[1 + i % 10] * prefix + [100 + i] * 40 for i in range(400)]
    prompts += [[99, 1000 + i, *range(500)] for i in range(400)]
    tree = tree_of(prompts)
    guess = np.full(800, 256, np.int32)
    parts = partition(tree, tree.leaf_order, guess, cost_model(), 8, np.ones(800, bool))
    for part in parts:
        assert (part.requests < 400).sum() == pytest.approx(50, abs=1)
    on_ranks = sum(len(set((p.requests[p.requests < 400] % 10).tolist())) for p in parts) - 10
    assert on_ranks == most_repeats
