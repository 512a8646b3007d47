"""The coordinator on its own: who gets what, told by made-up ranks."""

import numpy as np
import pytest

from blendrun.engine.rank_figures import RankFigures
from blendrun.launch.coordinator import Coordinator
from blendrun.launch.local import core_shares
from blendrun.launch.messages import Give, GiveRunning, Learn, Report
from blendrun.launch.orders import Condemn, GiveUp, Order, Send, Start
from blendrun.launch.share import seconds_of
from blendrun.launch.work import Work
from blendrun.schedule.step.outputs import Outputs
from tiny_jobs import cost_model, tree_of

NOTHING = np.zeros(0, np.int32)
NO_OUTPUTS = Outputs.nothing()


def numbers(*requests: int) -> np.ndarray:
    return np.array(requests, np.int32)


def coordinator(*parts: list[int], n: int = 8) -> Coordinator:
    tree = tree_of([[i // 4, i, 7] for i in range(n)])
    work = Work(tree, np.full(n, 10, np.int32), np.zeros(n, bool), cost_model())
    return Coordinator(work, [numbers(*part) for part in parts])


def report(
    *ended: int,
    running: int = 0,
    waiting: int = 0,
    left_s: float = 0.0,
    reads_s: float = 0.0,
    is_learning: bool = False,
    outputs: Outputs = NO_OUTPUTS,
) -> Report:
    figures = RankFigures(
        running, waiting, left_s, reads_s, 0.0, is_learning, 1000, 1.0, 1.0, 0, np.zeros(0), outputs
    )
    return Report(numbers(*ended), figures)


def sent(orders: list[Order]) -> list[tuple[int, str, list[int]]]:
    return [
        (order.rank, type(order.message).__name__, sorted(order.message.requests.tolist()))
        for order in orders
        if isinstance(order, Send)
    ]


def both_up(made: Coordinator) -> None:
    assert made.begin() == [Start(0), Start(1)]
    for rank in (0, 1):
        made.loaded(rank)


def test_each_rank_gets_its_part_when_it_is_up():
    made = coordinator([0, 1, 2, 3], [4, 5, 6, 7], [])
    assert made.begin() == [Start(0), Start(1)]
    assert sent(made.loaded(1)) == [(1, "Take", [4, 5, 6, 7])]
    assert not made.is_over


def test_a_rank_that_runs_out_gets_half_of_what_the_other_has_left():
    made = coordinator([0, 1], [2, 3, 4, 5, 6, 7])
    both_up(made)
    made.began(numbers(0, 1, 2, 3))
    made.reported(1, report(running=2, waiting=4, left_s=6.0))
    (order,) = made.reported(0, report(0, 1))
    assert isinstance(order, Send)
    assert isinstance(order.message, Give)
    assert order.rank == 1
    assert set(order.message.requests.tolist()) <= {4, 5, 6, 7}
    given = order.message.requests
    assert sent(made.gave(1, given)) == [(0, "Take", sorted(given.tolist()))]


def test_a_rank_that_waits_gets_work_as_soon_as_another_can_give_it():
    made = coordinator([0], [1, 2, 3, 4, 5, 6], [7])
    made.begin()
    for rank in range(3):
        made.loaded(rank)
    made.began(numbers(0, 1, 7))
    lengths = np.full(8, 10, np.int32)
    left_s = seconds_of(made._forecast.tree, numbers(1, 2, 3, 4, 5, 6), lengths, cost_model())
    made.reported(1, report(running=1, waiting=5, left_s=left_s))
    ((_, _, asked),) = sent(made.reported(0, report(0)))
    assert made.reported(2, report(7)) == [], "it has been asked already"
    orders = sent(made.gave(1, numbers(*asked)))
    assert orders[0] == (0, "Take", asked)
    assert orders[1][:2] == (1, "Give")


def test_what_has_begun_meanwhile_stays_where_it_is():
    made = coordinator([0], [1, 2])
    both_up(made)
    made.began(numbers(0, 1))
    made.reported(1, report(running=1, waiting=1, left_s=2.0))
    assert sent(made.reported(0, report(0))) == [(1, "Give", [2])]
    assert made.gave(1, NOTHING) == []
    made.reported(1, report(1, 2))
    assert made.is_over


def test_requests_of_a_dead_rank_go_to_the_others_except_those_that_it_saved():
    made = coordinator([0, 1], [2, 3, 4, 5])
    both_up(made)
    made.began(numbers(0, 1, 2, 3))
    orders = made.died(1, numbers(2))
    assert Start(1) in orders
    assert sent(made.reported(0, report(0, 1))) == [(0, "Take", [3])], "a suspect runs alone"
    ((_, _, first),) = sent(made.loaded(1))
    rest = sorted({4, 5} - set(first))
    assert sent(made.reported(1, report(*first))) == ([(1, "Take", rest)] if rest else [])


def test_a_rank_that_dies_at_each_start_is_given_up_and_its_requests_are_not():
    made = coordinator([0], [1, 2])
    made.begin()
    made.loaded(0)
    for _ in range(3):
        assert Start(1) in made.died(1, NOTHING)
    assert GiveUp(1) in made.died(1, NOTHING)
    assert not made.is_lost
    assert sent(made.reported(0, report(0))) == [(0, "Take", [1, 2])]
    made.reported(0, report(1, 2))
    assert made.is_over


def test_a_request_that_kills_its_rank_alone_for_the_second_time_is_condemned():
    made = coordinator([0])
    made.begin()
    made.loaded(0)
    made.began(numbers(0))
    assert made.died(0, NOTHING) == [Start(0)]
    assert sent(made.loaded(0)) == [(0, "Take", [0])]
    made.began(numbers(0))
    assert made.died(0, NOTHING) == [Condemn(0)]
    assert made.is_over


def test_what_was_given_for_a_rank_that_died_meanwhile_goes_to_whoever_is_free():
    made = coordinator([0], [1, 2, 3])
    both_up(made)
    made.began(numbers(0, 1))
    made.reported(1, report(running=1, waiting=2, left_s=3.0))
    ((_, _, asked),) = sent(made.reported(0, report(0)))
    made.died(0, NOTHING)
    assert made.gave(1, numbers(*asked)) == []
    assert sent(made.loaded(0)) == [(0, "Take", asked)]


@pytest.mark.parametrize("is_learning", [True, False])
def test_nothing_is_levelled_before_lengths_are_known(is_learning: bool):
    made = coordinator([0, 1, 2], [3, 4, 5, 6, 7])
    both_up(made)
    made.reported(1, report(waiting=5, left_s=9.0, is_learning=is_learning))
    orders = []
    for _ in range(20):
        orders += made.reported(0, report(waiting=3, left_s=1.0))
    assert bool(orders) == (not is_learning)


@pytest.mark.parametrize(("left_s", "is_late"), [(1.5, False), (0.5, True)])
def test_nothing_is_levelled_before_half_of_a_ranks_time_is_over(left_s: float, is_late: bool):
    made = coordinator([0, 1, 2], [3, 4, 5, 6, 7])
    both_up(made)
    made.reported(1, report(waiting=5, left_s=9.0))
    orders = []
    for _ in range(20):  # its steps have taken a second
        orders += made.reported(0, report(waiting=3, left_s=left_s))
    assert bool(orders) == is_late


def test_two_ranks_do_not_ask_for_the_same():
    made = coordinator([], [0, 1, 2, 3, 4, 5], [6], n=8)
    made.begin()
    for rank in (1, 2):
        made.loaded(rank)
    made.began(numbers(6))
    made.reported(1, report(waiting=6, left_s=6.0))
    assert len(made.reported(2, report(6))) == 1
    assert made.ranks[1].rest.compute_s < 6.0
    assert made.ranks[2].rest.compute_s > 0.0


def test_running_requests_move_where_no_others_can():
    made = coordinator([0, 1], [2, 3, 4, 5, 6, 7])
    both_up(made)
    made.began(numbers(*range(8)))
    made.reported(1, report(running=6, reads_s=6.0))
    (order,) = made.reported(0, report(1, running=1, left_s=1.0))
    assert isinstance(order, Send)
    assert isinstance(order.message, GiveRunning)
    assert (order.rank, order.message.memory_s) == (1, 3.0)
    assert sent(made.gave(1, numbers(6, 7))) == [(0, "Take", [6, 7])]
    made.reported(1, report(2, 3, 4, 5))
    assert sent(made.died(0, NOTHING)) == [(1, "Take", [0])], "a suspect runs alone"
    ((rank, _, again),) = sent(made.loaded(0))
    assert rank == 0
    assert set(again) <= {6, 7}, "they had not begun there"


def test_ranks_hear_of_outputs_of_others_also_of_those_that_died():
    made = coordinator([0, 1, 2], [3, 4, 5, 6, 7])
    both_up(made)
    one, two = (
        Outputs(np.array([place]), numbers(1), numbers(running))
        for place, running in ((3, 4), (5, 6))
    )
    assert made.reported(0, report(waiting=3, outputs=one)) == []
    (learn,) = made.reported(1, report(waiting=5, outputs=two))
    assert isinstance(learn.message, Learn)
    assert counts(learn) == (1, [3], [1], [4])
    made.died(1, NOTHING)
    (learn,) = made.reported(0, report(waiting=3, outputs=one))
    assert counts(learn) == (0, [5], [1], [0]), "nothing runs there any more"
    made.loaded(1)
    learn, *_ = made.reported(1, report(waiting=5))
    assert counts(learn) == (1, [3, 5], [1, 1], [4, 0])


def counts(order: Order) -> tuple[int, list[int], list[int], list[int]]:
    outputs = order.message.outputs
    return order.rank, *(
        column.tolist() for column in (outputs.place, outputs.ended, outputs.running)
    )


def test_a_single_running_request_stays_where_it_is():
    made = coordinator([0], [1])
    both_up(made)
    made.began(numbers(0, 1))
    made.reported(1, report(running=1, reads_s=6.0))
    assert made.reported(0, report(0)) == []


@pytest.mark.parametrize(
    ("cores", "ranks", "shares"),
    [
        ([0, 1, 2, 3], 2, [(0, 1), (2, 3)]),
        ([2, 5, 7], 2, [(2,), (5, 7)]),
        ([0, 1], 3, [(0, 1)] * 3),
    ],
)
def test_cores_are_divided_where_there_are_enough(cores, ranks, shares):
    assert core_shares(cores, ranks) == shares
