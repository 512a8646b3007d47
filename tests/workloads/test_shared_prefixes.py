import numpy as np

from blendrun.workloads.shared_prefixes import SharedPrefixes

#   root 0 ─ 1 ─ 3, 4;  root ─ 2
PREFIXES = SharedPrefixes(np.array([0, 0, 0, 1, 1], np.int32), np.array([0, 2, 3, 5, 6], np.int32))


def compact(*num_requests: int) -> tuple[list[int], list[int]]:
    kept, stands_for = PREFIXES.compact(np.array(num_requests, np.int32))
    return kept.tolist(), stands_for.tolist()


def test_children_are_counted_and_placed_among_their_siblings():
    assert PREFIXES.num_children.tolist() == [2, 2, 0, 0, 0]
    assert PREFIXES.place.tolist() == [0, 0, 1, 0, 1]


def test_prefixes_at_which_requests_part_are_kept():
    assert compact(0, 0, 2, 2, 2) == ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])


def test_a_prefix_of_one_request_is_that_request():
    assert compact(0, 0, 1, 1, 2) == ([0, 1, 4], [0, 1, 0, 1, 2])


def test_a_prefix_with_one_longer_prefix_only_is_not_kept():
    assert compact(0, 0, 0, 0, 5) == ([0, 4], [0, 0, 0, 0, 1])


def test_the_root_is_kept_without_any_request():
    assert compact(0, 0, 0, 0, 0) == ([0], [0, 0, 0, 0, 0])
