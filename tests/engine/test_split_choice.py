"""Whether a step is divided: by a table of measured steps, else by the cost model."""

from dataclasses import replace

import pytest

from blendrun.cost.cost_model import CostModel
from blendrun.cost.hardware import HardwareProfile
from blendrun.cost.profile_file import write_profile
from blendrun.engine.overlap import choose_overlap
from blendrun.engine.split_choice import WHOLE, ByCost, ByTable, Split, choose_split
from blendrun.engine.step_cuts import StepShape
from blendrun.errors import InputError
from tiny_jobs import cost_model
from tiny_lanes import InlineLanes, OneKind

TABLE = {
    "split_tokens": (256, 1024, 1024),
    "split_contexts": (100_000, 100_000, 400_000),
    "split_parts": (2, 2, 3),
    "split_memory_fracs": (0.0, 0.25, 0.5),
    "split_gains": (0.9, 1.2, 1.4),
}


def with_table(**changes: object) -> HardwareProfile:
    return replace(HardwareProfile.load("h100-sxm"), **TABLE, **changes)


def test_the_nearest_measured_step_decides():
    choose = ByTable(with_table())
    assert choose(StepShape(200, 900, 90_000)) == Split(2, 0.25)
    assert choose(StepShape(200, 900, 900_000)) == Split(3, 0.5)


def test_where_parts_were_slower_a_step_stays_whole():
    assert ByTable(with_table())(StepShape(200, 20, 90_000)) == WHOLE


def test_without_decodes_there_is_nothing_to_hide():
    shape = StepShape(0, 2048, 0)
    assert ByTable(with_table())(shape) == WHOLE
    assert ByCost(cost_model())(shape) == WHOLE


def test_the_cost_model_divides_where_reads_hide_behind_products():
    choose = ByCost(cost_model("h100-sxm"))
    assert choose(StepShape(200, 1024, 300_000)) == Split(2)
    # few reads: a second reading of the weights costs more
    assert choose(StepShape(20, 200, 4_000)) == WHOLE
    # few tokens: weights and KV come over the same wires
    assert choose(StepShape(32, 0, 300_000)) == WHOLE


def test_collectives_of_both_parts_count():
    one, step = cost_model("h100-sxm"), StepShape(200, 1024, 300_000)
    fast = replace(one.hardware, collective_latency_s=0.0)
    assert ByCost(CostModel(one.shape, fast, tp=2))(step) == Split(2)
    slow = replace(one.hardware, collective_latency_s=1e-3)  # more than parts gain
    assert ByCost(CostModel(one.shape, slow, tp=2))(step) == WHOLE
    assert ByCost(CostModel(one.shape, slow))(step) == Split(2)


def test_on_divides_without_a_table_too_and_off_never():
    cost = cost_model("h100-sxm")
    choose, reason = choose_split("on", cost)
    assert choose is not None
    assert choose(StepShape(2, 0, 10)) == Split(2)
    assert "no measured splits" in reason
    measured = CostModel(cost.shape, with_table())
    assert choose_split("off", measured)[0] is None
    slower = StepShape(200, 20, 90_000)
    assert choose_split("on", measured)[0](slower) == Split(2, 0.0)
    assert choose_split("auto", measured)[0](slower) == WHOLE


def test_auto_takes_the_table_then_the_model_and_nothing_where_the_profile_gains_nothing():
    cost = cost_model("h100-sxm")
    assert isinstance(choose_split("auto", CostModel(cost.shape, with_table()))[0], ByTable)
    assert isinstance(choose_split("auto", cost)[0], ByCost)
    alone = replace(cost.hardware, overlap=False, overlap_exponent=1.0)
    choose, reason = choose_split("auto", CostModel(cost.shape, alone))
    assert choose is None
    assert "gains nothing" in reason


def test_what_cannot_overlap_says_so_where_it_is_asked_for():
    cost, lanes = cost_model("h100-sxm"), OneKind(InlineLanes())
    assert choose_overlap("auto", None, cost, False)[0] is None
    assert choose_overlap("auto", lanes, cost, True)[0] is None
    assert choose_overlap("auto", lanes, cost, False)[0] is not None
    assert choose_overlap("on", lanes, replace(cost, tp=2), False)[0] is not None
    with pytest.raises(InputError, match="one thing at a time"):
        choose_overlap("on", None, cost, False)
    with pytest.raises(InputError, match="--pod"):
        choose_overlap("on", lanes, cost, True)


def test_a_table_goes_through_a_profile_file(tmp_path):
    path = tmp_path / "measured.toml"
    write_profile(with_table(), path, "measured")
    read = HardwareProfile.load(str(path))
    assert {key: getattr(read, key) for key in TABLE} == TABLE


def test_a_table_with_a_gap_is_refused():
    with pytest.raises(InputError, match="equally long"):
        replace(with_table(), split_parts=(2,))
    with pytest.raises(InputError, match="split_memory_fracs"):
        replace(with_table(), split_memory_fracs=(0.0, 0.5, 1.0))
