"""Group tests find the request that kills its rank, and condemn nobody else."""

import numpy as np
import pytest

from blendrun.launch.suspects import Suspects


def numbers(*requests: int) -> np.ndarray:
    return np.array(requests, np.int32)


def test_a_first_death_condemns_nobody_and_all_that_ran_are_tested_together():
    suspects = Suspects(10)
    assert not len(suspects.accuse(numbers(3, 5, 7)))
    assert suspects
    assert suspects.next_group().tolist() == [3, 5, 7]
    assert not suspects


def test_a_death_in_which_nothing_ran_accuses_nobody():
    suspects = Suspects(10)
    assert not len(suspects.accuse(numbers()))
    assert not suspects


def test_a_request_that_was_alone_both_times_is_condemned():
    suspects = Suspects(10)
    assert not len(suspects.accuse(numbers(4)))
    assert suspects.accuse(suspects.next_group()).tolist() == [4]


@pytest.mark.parametrize("culprits", [{0}, {13}, {99}, {2, 3}, {0, 50, 99}])
def test_the_culprits_are_found_in_few_deaths(culprits: set[int]):
    suspects, deaths, condemned = Suspects(100), 1, set()
    suspects.accuse(np.arange(100, dtype=np.int32))
    while suspects:
        group = suspects.next_group()
        if culprits & set(group.tolist()):
            deaths += 1
            condemned |= set(suspects.accuse(group).tolist())
    assert condemned == culprits
    assert deaths <= 1 + 8 * len(culprits)
