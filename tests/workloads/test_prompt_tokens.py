import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from blendrun.workloads.drawn import Drawn
from blendrun.workloads.prompt_tokens import prompt_pieces
from tiny_jobs import tree_of
from tiny_workloads import drawn, prompts_of, small_sets, workload_of


@given(st.lists(small_sets(), min_size=1, max_size=3), st.integers(1, 60))
def test_tokens_do_not_depend_on_how_they_are_cut(sets: list[Drawn], piece_tokens: int):
    workload = workload_of(*sets)
    assert prompts_of(workload, piece_tokens) == prompts_of(workload, 10**6)
    assert [len(prompt) for prompt in prompts_of(workload)] == workload.prompt_len.tolist()


def test_pieces_follow_each_other_and_are_no_longer_than_asked_for():
    workload = workload_of(drawn([3] * 50))
    pieces = list(prompt_pieces(workload, 70))
    assert [piece.first for piece in pieces] == list(range(0, 50, 10))
    assert [piece.last for piece in pieces] == [*range(10, 50, 10), 50]
    assert all(len(piece.tokens) == 70 for piece in pieces)


def test_a_prompt_longer_than_a_piece_is_a_piece():
    pieces = list(prompt_pieces(workload_of(drawn([90, 90])), 10))
    assert [len(piece.tokens) for piece in pieces] == [94, 94]


def test_tokens_are_int32_and_fill_the_vocabulary():
    workload = workload_of(drawn([400] * 20), vocab_size=50)
    tokens = np.concatenate([piece.tokens for piece in prompt_pieces(workload)])
    assert tokens.dtype == np.int32
    assert set(tokens) == set(range(50))


def test_tokens_depend_on_the_seed():
    a = drawn([5] * 4)
    first, again, other = (prompts_of(workload_of(a, seed=seed)) for seed in (1, 1, 2))
    assert first == again
    assert first[0][:4] != other[0][:4]


def test_more_continuations_than_tokens_differ_in_the_second_token():
    workload = workload_of(drawn([2] * 40), vocab_size=7)
    prompts = prompts_of(workload)
    assert len(set(map(tuple, prompts))) == 40
    of_tokens, ours = tree_of(prompts), workload.tree()
    # each of the 7 first tokens is now shared by several
    assert of_tokens.num_nodes == ours.num_nodes + 7
    assert of_tokens.num_unique_tokens == ours.num_unique_tokens - (40 - 7)
