import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendrun.cost.cost_model import CostModel, Flavour
from blendrun.cost.hardware import HardwareProfile
from blendrun.cost.model_shape import ModelShape
from blendrun.errors import InputError

LLAMA = ModelShape.load("llama-3.1-8b")
A100 = HardwareProfile.load("a100-80gb-sxm")
PRODUCT = CostModel(LLAMA, A100)
PAPER = CostModel(LLAMA, A100, flavour="paper")
BOTH = pytest.mark.parametrize("cost", [PRODUCT, PAPER], ids=["product", "paper"])
lengths = st.integers(1, 100_000)


def density_of(cost: CostModel, prompt_len: object, output_len: object) -> float:
    compute = np.sum(cost.compute_s(prompt_len, output_len))
    return float(compute / np.sum(cost.memory_s(prompt_len, output_len)))


def test_paper_compute_is_the_printed_formula():
    p, d = 1000, 100
    flops = 2 * (p + d) * 8_030_261_248 + 4 * p**2 * 4096 * 32
    assert PAPER.compute_s(p, d) == pytest.approx(flops / 312e12)


def test_paper_memory_is_the_printed_formula():
    p, d = 1000, 100
    assert PAPER.memory_s(p, d) == pytest.approx((p * d + d**2 / 2) * 4 * 1024 * 32 / 2.039e12)


@pytest.mark.parametrize(
    ("prompt_len", "output_len", "published"),
    [(2048, 28, 33.2), (226, 225, 3.12)],  # mean lengths of Azure code; chats like ShareGPT's
)
def test_published_densities_come_out_in_the_same_range(
    prompt_len: int, output_len: int, published: float
):
    assert published / 3 < density_of(PAPER, prompt_len, output_len) < published * 3


def test_few_shot_questions_are_compute_bound_and_long_videos_memory_bound():
    # MMLU: 86 % of the prompt is shared; published density 54.91
    assert 54.91 / 3 < (1 - 0.86) * density_of(PAPER, 1050, 4) < 54.91 * 3
    # OpenVid: outputs lognormal with mean 16,384, sigma 1.02; published density 0.05
    outputs = np.random.default_rng(0).lognormal(np.log(16384) - 1.02**2 / 2, 1.02, 20_000)
    assert 0.05 / 2 < density_of(PAPER, 200, np.clip(outputs, 512, 65536)) < 0.05 * 2


def test_weight_read_time_of_the_reference_machine():
    assert PAPER.weight_read_s == pytest.approx(7.88e-3, rel=1e-3)
    assert PRODUCT.weight_read_s < PAPER.weight_read_s  # only rows of the embedding are read


def test_kv_memory_of_the_reference_machine():
    assert PAPER.kv_memory_bytes == pytest.approx(60e9, rel=0.01)
    assert PAPER.kv_capacity_tokens == PAPER.kv_memory_bytes // 131_072


@BOTH
@given(cuts=st.lists(lengths, min_size=2, max_size=6))
def test_chunks_add_up_to_the_whole_prefill(cost: CostModel, cuts: list[int]):
    edges = np.array([0, *sorted(cuts)])
    chunks = cost.prefill_s(edges[:-1], edges[1:])
    assert chunks.sum() == pytest.approx(float(cost.prefill_s(0, edges[-1])), rel=1e-9)


@BOTH
@given(p=lengths, d=lengths)
def test_longer_requests_cost_more(cost: CostModel, p: int, d: int):
    assert cost.compute_s(p + 1, d) > cost.compute_s(p, d)
    assert cost.compute_s(p, d + 1) > cost.compute_s(p, d)
    assert cost.memory_s(p, d + 1) > cost.memory_s(p, d)


@BOTH
@given(p=lengths, d=lengths)
def test_a_column_prices_each_row_as_alone(cost: CostModel, p: int, d: int):
    rows = np.array([p, 7], dtype=np.int32), np.array([d, 9], dtype=np.int32)
    assert cost.compute_s(*rows)[0] == pytest.approx(float(cost.compute_s(p, d)))
    assert cost.memory_s(*rows)[0] == pytest.approx(float(cost.memory_s(p, d)))


@given(p=st.integers(1, 2000), d=st.integers(1, 60))
def test_product_memory_is_the_sum_over_decode_steps(p: int, d: int):
    contexts = sum(p + t for t in range(1, d))  # the first token comes out of the prefill
    expected = contexts * 131_072 / 2.039e12
    assert PRODUCT.memory_s(p, d) == pytest.approx(expected)


def test_product_first_output_token_needs_no_decode_step():
    assert PRODUCT.decode_compute_s(500, 1) == 0
    assert PRODUCT.memory_s(500, 1) == 0
    assert PRODUCT.compute_s(500, 1) == PRODUCT.prefill_s(0, 500) + PRODUCT.head_s(1)


def test_product_prefill_counts_body_once_per_token_and_half_the_square():
    p = 1000
    flops = 2 * p * LLAMA.body_params + 2 * p**2 * 4096 * 32
    assert PRODUCT.prefill_s(0, p) == pytest.approx(flops / 312e12)


def test_product_head_runs_once_per_output_token():
    p, d = 300, 20
    body = (p + d - 1) * 2 * LLAMA.body_params / 312e12
    attention = 2 * p**2 * 4096 * 32 / 312e12
    head = PRODUCT.compute_s(p, d) - body - attention
    assert head == pytest.approx(d * 2 * LLAMA.head_params / 312e12)


def test_tp_divides_compute_and_kv_until_heads_repeat():
    one, eight, sixteen = (CostModel(LLAMA, A100, tp=tp) for tp in (1, 8, 16))
    assert eight.compute_s(900, 50) == pytest.approx(one.compute_s(900, 50) / 8)
    assert eight.weight_read_s == pytest.approx(one.weight_read_s / 8)
    assert eight.memory_s(900, 50) == pytest.approx(one.memory_s(900, 50) / 8)
    assert sixteen.memory_s(900, 50) == pytest.approx(eight.memory_s(900, 50))


def test_tp_that_does_not_divide_the_heads_is_refused():
    with pytest.raises(InputError, match="cannot be divided among 3 ranks") as caught:
        CostModel(LLAMA, A100, tp=3)
    assert "1, 2, 4, 8, 16, 32" in str(caught.value.hint)


def test_efficiencies_lengthen_times():
    rough = dataclasses.replace(A100, compute_efficiency=0.75, bandwidth_efficiency=0.85)
    cost = CostModel(LLAMA, rough)
    assert cost.compute_s(100, 10) == pytest.approx(PRODUCT.compute_s(100, 10) / 0.75)
    assert cost.memory_s(100, 10) == pytest.approx(PRODUCT.memory_s(100, 10) / 0.85)


@pytest.mark.parametrize(("exponent", "seconds"), [(1.0, 7.0), (2.0, 5.0), (float("inf"), 4.0)])
def test_overlap_is_a_norm(exponent: float, seconds: float):
    cost = CostModel(LLAMA, dataclasses.replace(A100, overlap_exponent=exponent))
    assert cost.overlapped_s(3.0, 4.0) == pytest.approx(seconds)
    assert cost.overlapped_s([0.0, 2.0], [0.0, 0.0]).tolist() == [0.0, 2.0]


@given(
    st.sampled_from([1.0, 1.5, 4.0, np.inf]),
    *(st.floats(0, 100) for _ in range(4)),
)
def test_the_gradient_of_overlap_makes_up_the_whole_and_bounds_all_others(
    exponent: float,
    compute_s: float,
    memory_s: float,
    other_compute_s: float,
    other_memory_s: float,
):
    hardware = dataclasses.replace(A100, overlap_exponent=exponent)
    cost = CostModel(LLAMA, hardware)
    a, b = cost.overlap_gradient(compute_s, memory_s)
    assert a * compute_s + b * memory_s == pytest.approx(cost.overlapped_s(compute_s, memory_s))
    if compute_s or memory_s:
        least_s = a * other_compute_s + b * other_memory_s
        assert least_s <= cost.overlapped_s(other_compute_s, other_memory_s) * (1 + 1e-9)


def test_density_is_infinite_where_no_kv_is_read():
    assert PRODUCT.density([2.0, 1.0], [1.0, 0.0]).tolist() == [2.0, np.inf]


@pytest.mark.parametrize("flavour", ["product", "paper"])
def test_tokens_of_int32_columns_do_not_overflow(flavour: Flavour):
    cost = CostModel(LLAMA, A100, flavour=flavour)
    long = np.array([100_000], dtype=np.int32)
    assert cost.prefill_s(0, long)[0] == pytest.approx(float(cost.prefill_s(0, 1e5)))
    assert cost.memory_s(long, long)[0] > 0


def test_a_small_device_has_no_kv_memory_rather_than_less_than_none():
    cost = CostModel(LLAMA, dataclasses.replace(A100, memory_bytes=8e9))
    assert cost.kv_memory_bytes == 0
    assert cost.kv_capacity_tokens == 0


@pytest.mark.parametrize("tp", [1, 8])
def test_stated_kv_memory_is_that_of_each_rank(tp: int):
    cost = CostModel(LLAMA, dataclasses.replace(A100, kv_memory_bytes=60e9), tp=tp)
    assert cost.kv_memory_bytes == 60_000_000_000
    assert cost.kv_capacity_tokens == 60_000_000_000 // (131_072 // tp)


def test_reference_machine_holds_the_tokens_of_60_gb():
    cost = CostModel(LLAMA, HardwareProfile.load("paper-a100"), flavour="paper")
    assert cost.kv_capacity_tokens == 457_763
    assert cost.weight_read_s == pytest.approx(7.88e-3, rel=1e-3)


def test_weights_are_the_floor_of_a_steps_gemms():
    floor = PRODUCT.weight_read_s
    assert PRODUCT.with_weight_floor([0.0, floor / 2, 3 * floor], floor).tolist() == [
        floor,
        floor,
        3 * floor,
    ]


def test_smooth_floor_charges_for_compute_and_weights_near_the_corner():
    cost = CostModel(LLAMA, dataclasses.replace(A100, weight_floor_exponent=2.0))
    floor = cost.weight_read_s
    assert cost.with_weight_floor(floor * 4 / 3, floor) == pytest.approx(floor * 5 / 3)
    assert cost.with_weight_floor(0.0, floor) == pytest.approx(floor)


def test_collectives_are_two_rings_per_layer():
    cost = CostModel(LLAMA, A100, tp=4)
    sent = 2 * 3 / 4 * 256 * 4096 * 2  # bytes that a rank passes on in one all-reduce
    assert cost.collective_s(256) == pytest.approx(2 * 32 * (sent / 300e9 + 6e-6))


def test_collectives_of_a_small_step_take_their_latency():
    free = dataclasses.replace(A100, interconnect_bandwidth=float("inf"))
    cost = CostModel(LLAMA, free, tp=8)
    assert cost.collective_s([0, 1, 500]).tolist() == pytest.approx([0, 64 * 6e-6, 64 * 6e-6])


@pytest.mark.parametrize(
    "cost",
    [PRODUCT, CostModel(LLAMA, A100, tp=8, flavour="paper")],
    ids=["one rank", "paper overlaps them"],
)
def test_collectives_can_cost_nothing(cost: CostModel):
    assert cost.collective_s([1, 500]).tolist() == [0, 0]


def test_ranks_on_one_cpu_share_it_and_gpus_do_not():
    shape, cpu = ModelShape.load("llama-3.1-8b"), HardwareProfile.load("cpu")
    one, two, many = (CostModel.of_group(shape, cpu, tp) for tp in (1, 2, 16))
    assert two.prefill_s(0, 100) == pytest.approx(one.prefill_s(0, 100))
    assert two.memory_s(100, 10) == pytest.approx(one.memory_s(100, 10))
    assert two.hardware.memory_bytes == pytest.approx(one.hardware.memory_bytes / 2)
    # 8 KV heads on 16 ranks: each is read twice
    assert many.memory_s(100, 10) == pytest.approx(2 * one.memory_s(100, 10))
    gpu = HardwareProfile.load("h200")
    assert CostModel.of_group(shape, gpu, 2) == CostModel(shape, gpu, 2)
