"""Seconds of compute and of KV reads that requests cost, from a model's and a machine's figures.

`paper` is the source paper's section 3.3 as printed; `product` counts what our engine does.
Attention of decode tokens counts as memory time only: reading K and V takes longer than the
arithmetic on them. Knows nothing of prefix sharing: callers add up chunks that are computed.
"""

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from blendrun.cost.arrays import Floats, Numbers, as_floats
from blendrun.cost.hardware import HardwareProfile
from blendrun.cost.model_shape import BF16_BYTES, ModelShape
from blendrun.cost.tensor_shards import check_tp

Flavour = Literal["product", "paper"]


@dataclass(frozen=True, slots=True)
class CostModel:
    """Prices requests on `tp` devices of one kind; weights of the shape, KV as stated.

    Lengths are token counts (scalars or arrays that broadcast); seconds come back as float64 of
    the broadcast shape.

    Raises:
        InputError: the heads cannot be divided among `tp` ranks.
    """

    shape: ModelShape
    hardware: HardwareProfile
    tp: int = 1
    flavour: Flavour = "product"
    kv_element_bytes: int = BF16_BYTES

    def __post_init__(self) -> None:
        check_tp(self.tp, self.shape.num_heads, self.shape.num_kv_heads, self.shape.name)

    @classmethod
    def of_group(
        cls,
        shape: ModelShape,
        hardware: HardwareProfile,
        tp: int = 1,
        flavour: Flavour = "product",
        kv_element_bytes: int = BF16_BYTES,
    ) -> Self:
        """Prices of a group of `tp` ranks: each has a GPU of its own, on a CPU they share it."""
        each = hardware.shared_by(tp) if hardware.kind == "cpu" else hardware
        return cls(shape, each, tp, flavour, kv_element_bytes)

    def prefill_s(self, start: Numbers, end: Numbers) -> Floats:
        """Compute of prompt tokens [start, end) of one request, without the output head.

        Chunks add up: the sum over consecutive chunks is the cost of the whole.
        """
        start, end = as_floats(start), as_floats(end)
        pairs = end**2 - start**2  # a square; the causal half of it is what really is computed
        if self.flavour == "paper":
            flops = 2 * self.shape.total_params * (end - start)
            flops = flops + 4 * self.shape.hidden_size * self.shape.num_layers * pairs
            return flops / self._flops_per_s
        products = 2 * self.shape.body_params * (end - start)
        attention = 2 * self.shape.query_width * self.shape.num_layers * pairs
        attention_flops = self.hardware.attention_flops or self.hardware.effective_flops
        return products / self._flops_per_s + attention / (attention_flops * self.tp)

    def head_s(self, num_tokens: Numbers) -> Floats:
        """Compute of the output head for `num_tokens` tokens; 0 in `paper`, which has no head.

        At its own best rate where that is measured: best tokens take less than the whole product.
        """
        params = 0 if self.flavour == "paper" else self.shape.head_params
        rates = self.hardware.head_flops if self._is_measured else ()
        flops_per_s = max(rates) * self.tp if rates else self._flops_per_s
        return 2 * params * as_floats(num_tokens) / flops_per_s

    def decode_compute_s(self, prompt_len: Numbers, output_len: Numbers) -> Floats:
        """Compute of a request's decode steps, head included.

        `product` makes the first output token in the last prefill step: output_len − 1 decodes.
        """
        steps = self.num_decodes(output_len) + 0 * as_floats(prompt_len)
        if self.flavour == "paper":
            return 2 * self.shape.total_params * steps / self._flops_per_s
        return 2 * self.shape.body_params * steps / self._flops_per_s + self.head_s(steps)

    def memory_s(self, prompt_len: Numbers, output_len: Numbers) -> Floats:
        """Time to read K and V in all decode steps of a request; each reads its whole context."""
        prompt, steps = as_floats(prompt_len), self.num_decodes(output_len)
        last = 0 if self.flavour == "paper" else steps  # the paper takes d² for d·(d+1)
        contexts = prompt * steps + (steps**2 + last) / 2
        return contexts * self.kv_bytes_per_token / self.hardware.effective_bandwidth

    def compute_s(self, prompt_len: Numbers, output_len: Numbers) -> Floats:
        """Compute of whole requests, nothing shared."""
        prefill = self.prefill_s(0, prompt_len) + self.head_s(1)
        return prefill + self.decode_compute_s(prompt_len, output_len)

    def density(self, compute_s: Numbers, memory_s: Numbers) -> Floats:
        """compute over memory time; above 1 is compute-bound, inf where no KV is read."""
        compute, memory = np.broadcast_arrays(as_floats(compute_s), as_floats(memory_s))
        density = np.full(compute.shape, np.inf)
        np.divide(compute, memory, out=density, where=memory > 0)
        return density

    def step_products_s(self, num_tokens: Numbers) -> Floats:
        """Products of the layers in one step over `num_tokens` tokens, at its measured rate.

        Where the profile has no measured rates, at its only one, rounded up to its tile; then
        reading the weights is not in it.
        """
        tokens = as_floats(num_tokens)
        if self._is_measured:
            return self._measured_s(self.shape.body_params, tokens, self.hardware.gemm_flops)
        tile = self.hardware.gemm_tile
        params = self.shape.total_params if self.flavour == "paper" else self.shape.body_params
        return 2 * params * np.ceil(tokens / tile) * tile / self._flops_per_s

    def step_heads_s(self, num_tokens: Numbers) -> Floats:
        """The output head for `num_tokens` tokens of one step; see `step_products_s`."""
        if self._is_measured:
            rates = self.hardware.head_flops or self.hardware.gemm_flops
            return self._measured_s(self.shape.head_params, as_floats(num_tokens), rates)
        return self.head_s(num_tokens)

    def overlapped_s(self, compute_s: Numbers, memory_s: Numbers) -> Floats:
        """Time for both kinds of work run together: their norm with the profile's exponent.

        Exponent 1 adds them up (no overlap), infinity takes the larger (perfect overlap).
        """
        return _norm(compute_s, memory_s, self.hardware.overlap_exponent)

    def overlap_gradient(self, compute_s: float, memory_s: float) -> tuple[float, float]:
        """What one more second of compute, and one of memory, adds to `overlapped_s`.

        It is a norm: the two seconds, each times its share of the gradient, make up the whole,
        and no other pair takes less than that sum.
        """
        exponent = self.hardware.overlap_exponent
        longer = max(compute_s, memory_s)
        if exponent == 1 or longer <= 0:
            return 1.0, 1.0
        if np.isinf(exponent):
            return float(compute_s >= memory_s), float(compute_s < memory_s)
        whole_s = float(self.overlapped_s(compute_s, memory_s))
        return (compute_s / whole_s) ** (exponent - 1), (memory_s / whole_s) ** (exponent - 1)

    def with_weight_floor(self, compute_s: Numbers, weight_s: Numbers) -> Floats:
        """Time of GEMMs that compute for `compute_s` and read weights for `weight_s`.

        Their norm with the profile's weight_floor_exponent: infinity takes the larger, a smaller
        exponent rounds the corner between the two.
        """
        return _norm(compute_s, weight_s, self.hardware.weight_floor_exponent)

    def collective_s(self, num_tokens: Numbers) -> Floats:
        """Time of a step's all-reduces over `tp` ranks: two per layer, each a ring.

        0 without tokens, on one rank, and in `paper`, where collectives overlap with computation
        (section 5.5). The logits' gather after the last layer is left out.
        """
        tokens = as_floats(num_tokens)
        if self.tp == 1 or self.flavour == "paper":
            return np.zeros_like(tokens)
        # every rank passes on each element twice, once to add and once to spread, but its own part
        sent = (
            2 * (self.tp - 1) / self.tp
            * self.shape.hidden_size  # elements per token
            * BF16_BYTES
            * tokens
        )  # fmt: skip
        each = sent / self.hardware.interconnect_bandwidth + self.hardware.collective_latency_s
        return np.where(tokens > 0, 2 * self.shape.num_layers * each, 0.0)

    def step_floor_s(self, num_tokens: Numbers) -> Floats:
        """Time to read the weights where `step_products_s` leaves it out, else 0."""
        read_s = self.step_weight_read_s(num_tokens)
        return np.zeros_like(read_s) if self._is_measured else read_s

    def step_weight_read_s(self, num_tokens: Numbers) -> Floats:
        """Time to read the weights that a step over `num_tokens` tokens touches."""
        if self.flavour == "paper":
            weight_bytes = self.shape.weight_bytes() + 0 * as_floats(num_tokens)
        else:
            weight_bytes = self.shape.touched_bytes(num_tokens)
        return weight_bytes / (self.hardware.effective_bandwidth * self.tp)

    @property
    def weight_read_s(self) -> float:
        """Time to read the weights of one token: no step takes less."""
        return float(self.step_weight_read_s(1))

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one cached token on one rank."""
        return self.shape.kv_bytes_per_token(self.tp, self.kv_element_bytes)

    @property
    def context_s(self) -> float:
        """Time of a decode to read K and V of one token of its context."""
        return self.kv_bytes_per_token / self.hardware.effective_bandwidth

    @property
    def spared_frac(self) -> float:
        """Share of `context_s` that sharing a prefix spares every sharer but one, in a step.

        0 where each reads for itself. Where the rate of shared attention is known, its arithmetic
        is what is left: 4 * width FLOP per layer, query and token of context.
        """
        hardware = self.hardware
        if not hardware.shared_reads or self.flavour == "paper":
            return 0.0
        if hardware.shared_attention_flops is None:
            return 1.0
        flops = 4 * self.shape.query_width * self.shape.num_layers
        rest_s = flops / (hardware.shared_attention_flops * self.tp)
        return max(1 - rest_s / self.context_s, 0.0)

    @property
    def kv_memory_bytes(self) -> int:
        """Memory for KV pages on one rank: as the profile states it, else what weights leave."""
        if self.hardware.kv_memory_bytes is not None:
            return int(self.hardware.kv_memory_bytes)
        usable = self.hardware.memory_bytes * self.hardware.memory_frac
        return max(int(usable - self.shape.weight_bytes() / self.tp), 0)

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens that fit in `kv_memory_bytes`."""
        return self.kv_memory_bytes // self.kv_bytes_per_token

    @property
    def _flops_per_s(self) -> float:
        return self.hardware.effective_flops * self.tp

    @property
    def _is_measured(self) -> bool:
        return bool(self.hardware.gemm_tokens) and self.flavour == "product"

    def _measured_s(self, params: int, tokens: Floats, rates: tuple[float, ...]) -> Floats:
        """2 * params * tokens FLOP at measured rates; seconds between step sizes on a line."""
        sizes = np.array([0, *self.hardware.gemm_tokens[: len(rates)]], np.float64)
        seconds = np.zeros(len(sizes))
        seconds[1:] = 2 * params * sizes[1:] / (np.array(rates) * self.tp)
        seconds[0] = seconds[1]  # the smallest steps read the weights and little else
        within = np.interp(tokens, sizes, seconds)
        beyond = seconds[-1] * tokens / sizes[-1]
        return np.where(tokens > 0, np.where(tokens > sizes[-1], beyond, within), 0.0)

    def num_decodes(self, output_len: Numbers) -> Floats:
        """Decode steps of a request."""
        output = as_floats(output_len)
        return output if self.flavour == "paper" else np.maximum(output - 1, 0.0)


def _norm(one: Numbers, other: Numbers, exponent: float) -> Floats:
    """(one^q + other^q)^(1/q) without overflow; q = inf is the larger of the two."""
    one, other = as_floats(one), as_floats(other)
    longer, shorter = np.maximum(one, other), np.minimum(one, other)
    if np.isinf(exponent):
        return longer
    ratio = np.divide(shorter, longer, out=np.zeros_like(longer), where=longer > 0)
    return longer * (1 + ratio**exponent) ** (1 / exponent)
