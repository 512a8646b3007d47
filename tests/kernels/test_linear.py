import pytest
import torch
from torch import Tensor

from blendrun.kernels.cpu import linear as kernel
from blendrun.kernels.cpu import linear_reference as reference

WIDTH = kernel.panel_width()

pytestmark = pytest.mark.skipif(WIDTH == 0, reason="no compiled kernel")


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64).bfloat16()


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected).abs().max() / expected.abs().max())


# inputs: one word, odd numbers of words, and one, two and three pieces of a column
@pytest.mark.parametrize("num_in", [2, 6, 576, 1536, 1538, 4098])
@pytest.mark.parametrize("num_panels", [1, 2, 5])
@pytest.mark.parametrize("num_rows", [1, 5, 6, 7, 13, 96, 97, 205])
def test_products_are_those_of_float64(num_in: int, num_panels: int, num_rows: int):
    x, weight = random(num_rows, num_in), random(num_panels * WIDTH, num_in)
    bias = random(num_panels * WIDTH)
    for added in (None, bias):
        expected = x.double() @ weight.double().T
        if added is not None:
            expected = expected + added.double()
        actual = kernel.linear(x, kernel.pack(weight), added)
        assert relative_error(actual, expected) < 1e-2


@pytest.mark.parametrize("num_rows", [1, 6, 50, 130])
@pytest.mark.parametrize("num_in", [2, 576, 1538])
def test_gated_products_are_those_of_float64(num_in: int, num_rows: int):
    x, weight = random(num_rows, num_in), random(3 * WIDTH, num_in) / num_in**0.5
    bias = random(3 * WIDTH)
    panels = kernel.pack(weight, is_gated=True)
    for added in (None, bias):
        both = x.double() @ weight.double().T + (0.0 if added is None else added.double())
        gate, up = both.chunk(2, dim=-1)
        actual = kernel.linear_silu_mul(x, panels, added)
        assert relative_error(actual, torch.nn.functional.silu(gate) * up) < 1e-2


@pytest.mark.parametrize("num_rows", [1, 6, 50, 130])
@pytest.mark.parametrize("num_in", [2, 6, 576, 1538])
def test_rows_are_normed_before_the_product(num_in: int, num_rows: int):
    x, weight, norm = random(num_rows, num_in), random(2 * WIDTH, num_in), random(num_in)
    x *= torch.logspace(-3, 3, num_rows)[:, None].bfloat16()
    bias, eps = random(2 * WIDTH), 1e-5
    scale = torch.rsqrt(x.double().square().mean(dim=1, keepdim=True) + eps)
    expected = (x.double() * scale * norm.double()) @ weight.double().T + bias.double()
    panels = kernel.pack(weight, norm=norm)
    assert relative_error(kernel.linear(x, panels, bias, eps=eps), expected) < 1e-2
    gate, up = expected.chunk(2, dim=-1)
    gated = kernel.pack(weight, is_gated=True, norm=norm)
    actual = kernel.linear_silu_mul(x, gated, bias, eps=eps)
    assert relative_error(actual, torch.nn.functional.silu(gate) * up) < 2e-2


@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("num_rows", [1, 6, 97, 205])
@pytest.mark.parametrize("num_panels", [1, 2, 7])
def test_the_best_column_is_that_of_the_product(num_panels: int, num_rows: int, num_threads: int):
    torch.set_num_threads(num_threads)
    x, panels = random(num_rows, 64), kernel.pack(random(num_panels * WIDTH, 64))
    made, logits = kernel.linear_argmax(x, panels), kernel.linear(x, panels)
    assert torch.equal(made.value, logits.float().amax(dim=1))
    first = (logits == logits.amax(dim=1, keepdim=True)).int().argmax(dim=1)
    assert torch.equal(made.column, first)
    assert made.finite.all()


def test_of_equal_columns_the_first_is_the_best():
    weight = torch.zeros(4 * WIDTH, 8).bfloat16()
    weight[[70, 75, 200]] = 1.0
    made = kernel.linear_argmax(torch.ones(20, 8).bfloat16(), kernel.pack(weight))
    assert made.column.tolist() == [70] * 20


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_rows_that_are_not_finite_are_marked(bad: float):
    x, panels = random(100, 8), kernel.pack(random(3 * WIDTH, 8))
    x[[3, 99], 5] = bad
    made = kernel.linear_argmax(x, panels)
    assert (~made.finite).nonzero()[:, 0].tolist() == [3, 99]
    alone = kernel.linear_argmax(x[4:5], panels)
    assert made.column[4] == alone.column[0]


def test_no_rows_have_no_best_column():
    made = kernel.linear_argmax(random(0, 8), kernel.pack(random(WIDTH, 8)))
    assert [len(column) for column in made] == [0, 0, 0]


@pytest.mark.parametrize("num_rows", [1, 7, 130])
def test_a_product_is_added_to_what_is_there(num_rows: int):
    x, weight, bias = random(num_rows, 1538), random(2 * WIDTH, 1538), random(2 * WIDTH)
    total = random(num_rows, 2 * WIDTH)
    expected = total.double() + x.double() @ weight.double().T + bias.double()
    kernel.linear_add(x, kernel.pack(weight), bias, total)
    assert relative_error(total, expected) < 1e-2


def test_a_total_that_does_not_fit_is_refused():
    x, panels = random(3, 8), kernel.pack(random(WIDTH, 8))
    for total in (random(2, WIDTH), random(3, 2 * WIDTH)[:, ::2], torch.zeros(3, WIDTH)):
        with pytest.raises(ValueError, match="total must"):
            kernel.linear_add(x, panels, None, total)


def test_the_gate_may_be_far_from_zero():
    gate = torch.tensor([-1e38, -1e4, -100.0, -88.0, -1e-30, 0.0, 1e-30, 88.0, 100.0, 1e4, 1e38])
    x = gate.bfloat16()[:, None].repeat(1, 2)
    x[:, 1] = 1.0
    weight = torch.zeros(WIDTH, 2).bfloat16()
    weight[: WIDTH // 2, 0] = 1.0  # columns of gates: the first input
    weight[WIDTH // 2 :, 1] = 1.0
    actual = kernel.linear_silu_mul(x, kernel.pack(weight, is_gated=True))
    expected = torch.nn.functional.silu(x[:, :1].float()).expand(-1, WIDTH // 2)
    torch.testing.assert_close(actual.float(), expected, rtol=1e-2, atol=1e-30)


def test_the_reference_computes_the_same():
    x, weight, bias = random(9, 64), random(2 * WIDTH, 64), random(2 * WIDTH)
    panels, gated = kernel.pack(weight), kernel.pack(weight, is_gated=True)
    torch.testing.assert_close(
        kernel.linear(x, panels, bias), reference.linear(x, panels, bias), rtol=2e-2, atol=2e-2
    )
    totals = [random(9, 2 * WIDTH)] * 2
    totals[1] = totals[0].clone()
    kernel.linear_add(x, panels, bias, totals[0])
    reference.linear_add(x, panels, bias, totals[1])
    torch.testing.assert_close(*totals, rtol=2e-2, atol=3e-2)
    torch.testing.assert_close(
        kernel.linear_silu_mul(x, gated, bias),
        reference.linear_silu_mul(x, gated, bias),
        rtol=3e-2,
        atol=3e-2,
    )
    normed = [module.linear(x, panels, bias, eps=1e-5) for module in (kernel, reference)]
    torch.testing.assert_close(*normed, rtol=2e-2, atol=5e-2)
    both = (kernel.linear_argmax(x, panels), reference.linear_argmax(x, panels))
    for mine, its in zip(*both, strict=True):
        torch.testing.assert_close(mine.float(), its.float(), rtol=1e-2, atol=0)


def test_a_row_is_the_same_to_the_last_bit_whatever_is_beside_it():
    x, panels = random(300, 1538), kernel.pack(random(3 * WIDTH, 1538))
    gated = kernel.pack(random(2 * WIDTH, 1538), is_gated=True)
    whole, inner = kernel.linear(x, panels), kernel.linear_silu_mul(x, gated)
    normed, best = kernel.linear(x, panels, eps=1e-5), kernel.linear_argmax(x, panels)
    for first, last in ((0, 1), (17, 18), (3, 10), (100, 299)):
        assert torch.equal(kernel.linear(x[first:last], panels), whole[first:last])
        assert torch.equal(kernel.linear_silu_mul(x[first:last], gated), inner[first:last])
        own = kernel.linear(x[first:last], panels, eps=1e-5)
        assert torch.equal(own, normed[first:last])
        for mine, its in zip(kernel.linear_argmax(x[first:last], panels), best, strict=True):
            assert torch.equal(mine, its[first:last])


@pytest.mark.parametrize("num_threads", [2, 3, 7])
def test_any_number_of_threads_gives_the_same(num_threads: int):
    x, panels = random(45, 64), kernel.pack(random(5 * WIDTH, 64))
    expected = kernel.linear(x, panels)
    torch.set_num_threads(num_threads)
    assert torch.equal(kernel.linear(x, panels), expected)
    assert torch.equal(kernel.linear(x[:1], panels), expected[:1])


def test_rows_may_lie_apart_and_may_be_none():
    wide, panels = random(20, 96), kernel.pack(random(WIDTH, 64))
    expected = kernel.linear(wide[:, :64].contiguous(), panels)
    assert torch.equal(kernel.linear(wide[:, :64], panels), expected)
    assert kernel.linear(wide[:0, :64], panels).shape == (0, WIDTH)


@pytest.mark.parametrize("is_gated", [False, True])
def test_a_weight_comes_out_as_it_was_packed(is_gated: bool):
    weight = random(3 * WIDTH, 10)
    packed = kernel.pack(weight, is_gated=is_gated)
    assert torch.equal(kernel.unpack(packed, is_gated=is_gated), weight)


@pytest.mark.parametrize(
    "weight",
    [
        torch.zeros(WIDTH + 1, 8).bfloat16(),
        torch.zeros(WIDTH, 7).bfloat16(),
        torch.zeros(WIDTH, 8),
    ],
)
def test_what_is_no_whole_panels_is_not_packed(weight: Tensor):
    assert not kernel.can_pack(weight)
    with pytest.raises(ValueError, match="cannot pack"):
        kernel.pack(weight)


def test_wrong_activations_are_refused():
    panels = kernel.pack(random(WIDTH, 8))
    for x in (
        torch.zeros(2, 8),
        random(2, 6),
        random(8),
        random(2, 16)[:, ::2],
        random(2, 9)[:, 1:],
    ):
        with pytest.raises(ValueError, match=r"x must|rows of x"):
            kernel.linear(x, panels)


def test_products_in_a_row_are_made_with_as_many_threads_as_there_are_then():
    pairs = [(random(9, 64), kernel.pack(random(2 * WIDTH, 64))) for _ in range(2)]
    pairs.append((random(5, 6), kernel.pack(random(WIDTH, 6))))
    row, threads = kernel.InARow(pairs), torch.get_num_threads()
    try:
        for num in (1, 2):
            torch.set_num_threads(num)
            row.run()
            assert torch.equal(row.last, kernel.linear(*pairs[-1]))
            assert (row._made["num_threads"] == num).all()
    finally:
        torch.set_num_threads(threads)
