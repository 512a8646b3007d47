from dataclasses import replace

import pytest
import torch
from torch import Tensor

from blendrun.kernels.cpu import linear, screened_argmax
from blendrun.kernels.cpu.screened_argmax import Screen, can_screen

WIDTH = linear.panel_width()

pytestmark = pytest.mark.skipif(WIDTH == 0, reason="no compiled kernel")


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def random(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16()


def check(x: Tensor, panels: Tensor) -> float:
    """That the screen finds what the whole product does; the share of entries that it computes."""
    expected = linear.linear_argmax(x, panels)
    found, num_exact = Screen.of(panels).best(x)
    assert torch.equal(found.finite, expected.finite)
    for mine, its in ((found.column, expected.column), (found.value, expected.value)):
        assert torch.equal(mine[expected.finite], its[expected.finite])
    return num_exact / max(len(x) * panels.shape[0] * WIDTH, 1)


@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("num_rows", [0, 1, 5, 6, 7, 96, 97, 205])
@pytest.mark.parametrize("num_panels", [1, 2, 7, 40])
@pytest.mark.parametrize("num_in", [4, 12, 64, 100, 576])
def test_it_finds_what_the_whole_product_does(
    num_in: int, num_panels: int, num_rows: int, num_threads: int
):
    torch.set_num_threads(num_threads)
    check(random(num_rows, num_in), linear.pack(random(num_panels * WIDTH, num_in)))


def test_few_entries_are_computed_in_full():
    weight = random(300 * WIDTH, 576)
    assert check(random(50, 576), linear.pack(weight)) < 0.01
    # as tokens of a language model: one is clearly the best
    assert check(weight[::777] + random(len(weight[::777]), 576), linear.pack(weight)) < 1e-4


def test_a_few_large_inputs_do_not_blur_the_others(monkeypatch: pytest.MonkeyPatch):
    x, weight = random(60, 576), random(200 * WIDTH, 576)
    x[:, [3, 77, 500]] *= 10
    weight[:, [3, 77, 500]] /= 10
    panels = linear.pack(weight)
    share = check(x, panels)
    monkeypatch.setattr(screened_argmax, "_rotation", torch.eye)
    assert check(x, panels) > 3 * share


def test_columns_and_rows_of_all_sizes():
    x, weight = random(60, 64), random(20 * WIDTH, 64)
    x *= torch.logspace(-20, 20, 60)[:, None].bfloat16()
    weight *= torch.logspace(-10, 3, 20 * WIDTH)[:, None].bfloat16()
    check(x, linear.pack(weight))
    check(-x.abs(), linear.pack(weight.abs()))  # the best is the one nearest to 0


def test_of_equal_entries_the_first_is_the_best():
    weight = torch.zeros(4 * WIDTH, 8).bfloat16()
    check(random(20, 8), linear.pack(weight))
    weight[[1, 5, WIDTH + 3]] = 1.0
    panels = linear.pack(weight)
    check(torch.ones(20, 8).bfloat16(), panels)
    check(-torch.ones(20, 8).bfloat16(), panels)
    assert Screen.of(panels).best(torch.ones(1, 8).bfloat16())[0].column.tolist() == [1]


def test_entries_that_only_rounding_makes_equal():
    # neighbours in bfloat16 at 256 are 2 apart: all of these are 256, and the first of them counts
    weight = torch.zeros(3 * WIDTH, 8).bfloat16()
    weight[:, 0], weight[:, 1] = 256.0, torch.arange(3 * WIDTH) / (3 * WIDTH)
    x = torch.zeros(7, 8).bfloat16()
    x[:, :2] = 1.0
    check(x, linear.pack(weight))
    assert Screen.of(linear.pack(weight)).best(x)[0].column.tolist() == [0] * 7


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_rows_that_are_not_finite_are_marked(bad: float):
    x, panels = random(100, 8), linear.pack(random(3 * WIDTH, 8))
    x[[3, 99], 5] = bad
    assert (~Screen.of(panels).best(x)[0].finite).nonzero()[:, 0].tolist() == [3, 99]
    check(x, panels)


def test_results_too_large_for_a_float_are_marked():
    x, weight = random(9, 8), random(WIDTH, 8)
    x[4], weight[WIDTH - 1] = 1e30, 1e30
    check(x, linear.pack(weight))
    assert not Screen.of(linear.pack(weight)).best(x)[0].finite[4]


def test_without_what_rounding_can_change_it_is_wrong():
    """That the bounds are needed: with the rounded values alone some rows get another column."""
    x, weight = random(400, 64), random(30 * WIDTH, 64)
    x[:, :32], weight[:, :32] = 0, weight[:, :32] * 50  # large where it does not count
    panels = linear.pack(weight)
    check(x, panels)
    screen = Screen.of(panels)
    none = torch.zeros_like(screen.lost)
    careless, _ = replace(screen, lost=none, lengths=none).best(x)
    assert not torch.equal(careless.column, linear.linear_argmax(x, panels).column)


def test_what_cannot_be_screened_is_refused():
    whole = random(WIDTH, 8)
    assert can_screen(linear.pack(whole))
    odd, infinite = random(WIDTH, 6), whole.clone()
    infinite[0, 0] = torch.inf
    for weight in (odd, infinite):
        assert not can_screen(linear.pack(weight))
        with pytest.raises(ValueError, match="cannot be screened"):
            Screen.of(linear.pack(weight))
    screen = Screen.of(linear.pack(whole))
    for x in (random(3, 12), random(3, 8).float()):
        with pytest.raises(ValueError, match=r"bfloat16 \[T, 8\]"):
            screen.best(x)
