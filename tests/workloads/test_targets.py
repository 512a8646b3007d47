import pytest

from blendrun.errors import InputError
from blendrun.workloads.targets import Targets
from blendrun.workloads.totals import Totals


@pytest.mark.parametrize(
    ("density", "sharing", "num_sets"), [(None, None, 1), (1.4, None, 2), (1.4, 0.3, 3), (1, 0, 5)]
)
def test_as_many_targets_as_can_be_met_are_accepted(density, sharing, num_sets):
    Targets(density, sharing).check(num_sets)


@pytest.mark.parametrize(
    ("density", "sharing", "num_sets", "message"),
    [
        (1.4, None, 1, "no density can be chosen for 1 set"),
        (None, 0.3, 1, "no sharing can be chosen for 1 set"),
        (None, None, 2, "--density is missing"),
        (1.4, 0.3, 2, "no sharing can be chosen for 2 sets"),
        (1.4, None, 3, "--sharing is missing"),
        (None, 0.3, 4, "--density is missing"),
    ],
)
def test_targets_that_do_not_go_with_the_sets_are_refused(density, sharing, num_sets, message):
    with pytest.raises(InputError, match=message) as caught:
        Targets(density, sharing).check(num_sets)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("density", "sharing"), [(0, 0.1), (-1, 0.1), (float("inf"), 0.1), (1, -0.1), (1, 1), (1, 35)]
)
def test_values_that_no_job_has_are_refused(density, sharing):
    with pytest.raises(InputError, match="must be"):
        Targets(density, sharing)


def test_density_is_met_within_one_percent_and_sharing_within_half_a_point():
    targets = Targets(2.0, 0.5)
    assert targets.density_miss(Totals(20.0, 10.0, 5.04)) < 1 < targets.miss(Totals(20, 10, 5.06))
    assert targets.sharing_miss(Totals(1000.0, 504.0, 248.0)) < 1
    assert targets.miss(Totals(1000.0, 504.0, 248.0)) < 1 < targets.miss(Totals(1000, 506, 247.0))
    assert Targets().miss(Totals(1.0, 0.0, 0.0)) == 0
