"""A step's layers as one list of kernel calls, where all of a model's kernels are compiled ones.

The list is made once; a step fills in how many rows it has, its pages, and where its activations
are. What is computed is what `Decoder.operators` says, to the last bit.
"""

from itertools import product

import numpy as np
import torch
from torch import Tensor

from blendrun.engine.decoder import Decoder
from blendrun.engine.decoder_config import DecoderConfig
from blendrun.engine.decoder_weights import LayerWeights, MlpWeights
from blendrun.engine.paged_attention import PagedAttention, StepReads, StepWrites
from blendrun.engine.products import is_panels
from blendrun.kernels.cpu import calls as kernel_calls
from blendrun.kernels.cpu import linear
from blendrun.kernels.cpu.attention import AttentionPlan, CpuAttention
from blendrun.kernels.cpu.attention_binding import LayerAttention
from blendrun.kernels.cpu.calls import Call, Calls
from blendrun.kernels.cpu.kv_cache import KvShape
from blendrun.kernels.cpu.linear import LinearCall
from blendrun.kernels.cpu.rotary import RotaryCall, RotaryWrites

_QKV, _OUT, _GATE_UP, _DOWN = range(4)  # a layer's products


class LayerCalls:
    """All layers up to the last attention: behind it, few rows of a step are still needed."""

    def __init__(self, decoder: Decoder, k_cache: Tensor, v_cache: Tensor) -> None:
        """`fits` has said yes; caches with leading dims [num_layers, num_pages]."""
        config, layers = decoder.config, decoder.weights.layers
        self._config, self._dtype = config, decoder.dtype
        self._weights, self._caches = decoder.weights, (k_cache, v_cache)  # C++ has their pointers
        self._biases: list[Tensor] = []  # likewise
        num_layers = len(layers)
        self._products = np.zeros((num_layers, 4), np.dtype(LinearCall))
        self._rotary = np.zeros(num_layers, np.dtype(RotaryCall))
        self._attention = np.zeros(num_layers, np.dtype(LayerAttention))
        for number, layer in enumerate(layers):
            self._set_products(self._products[number], layer)
            self._set_norms(self._rotary[number], layer)
        for calls in (self._rotary, self._attention):
            calls["k_cache"] = [layer.data_ptr() for layer in k_cache]
            calls["v_cache"] = [layer.data_ptr() for layer in v_cache]
        self._set_shapes(config, KvShape.of(k_cache))
        self._room(1)
        self._calls = Calls(self._in_order())

    @staticmethod
    def fits(decoder: Decoder, attention: PagedAttention) -> bool:
        """Whether one after the other, alone, is how it computes, and all kernels are compiled."""
        return (
            isinstance(attention, CpuAttention)
            and attention.has_kernel(decoder.config.head_dim)
            and decoder.is_sequential
            and decoder.group.shard.size == 1
            and kernel_calls.can_run()
            and all(
                isinstance(layer.mlp, MlpWeights)
                and all(map(is_panels, (layer.qkv, layer.out, layer.mlp.gate_up, layer.mlp.down)))
                for layer in decoder.weights.layers
            )
        )

    def run(
        self, hidden: Tensor, cos: Tensor, sin: Tensor, writes: StepWrites, plan: StepReads
    ) -> tuple[Tensor, float]:
        """Runs the layers.

        Args:
            hidden: [T, H] embeddings, contiguous; becomes what the last attention's result is to
                be added to.
            cos, sin: float32 [T, D / 2].
            writes, plan: where K and V of the T tokens go, and their attention; of `CpuAttention`.

        Returns:
            [T, Hq * D] of the last attention, overwritten by the next call, and the seconds that
            KV writes and attention took.
        """
        assert isinstance(writes, RotaryWrites)
        assert isinstance(plan, AttentionPlan)
        assert plan.planned is not None
        num_rows, slots = len(hidden), writes.slots
        if num_rows > len(self._attended):
            self._room(num_rows)
        products, rotary = self._products, self._rotary
        for name, columns in (("x", (_QKV, _GATE_UP)), ("out", (_OUT, _DOWN))):
            products[name][:, columns] = hidden.data_ptr()
        products["num_rows"] = rotary["num_tokens"] = num_rows
        products["num_threads"] = rotary["num_threads"] = torch.get_num_threads()
        rotary["cos"], rotary["sin"] = cos.data_ptr(), sin.data_ptr()
        rotary["token_idx"], rotary["slots"] = writes.token_idx.data_ptr(), slots.data_ptr()
        rotary["num_slots"] = slots.numel()
        self._attention["plan"] = plan.planned.address
        seconds = self._calls.run()
        return self._attended[:num_rows], seconds

    def _set_products(self, products: np.ndarray, layer: LayerWeights) -> None:
        mlp, eps = layer.mlp, self._config.rms_eps
        assert isinstance(mlp, MlpWeights)
        gate_up_bias = mlp.gate_up_bias
        if gate_up_bias is not None:
            gate_up_bias = linear.gated_bias(gate_up_bias, mlp.gate_up)
            self._biases.append(gate_up_bias)
        for place, panels, bias in (
            (_QKV, layer.qkv, layer.qkv_bias),
            (_OUT, layer.out, layer.out_bias),
            (_GATE_UP, mlp.gate_up, gate_up_bias),
            (_DOWN, mlp.down, mlp.down_bias),
        ):
            call = products[place]
            call["panels"] = panels.data_ptr()
            call["bias"] = 0 if bias is None else bias.data_ptr()
            num_panels, num_words, width, _ = panels.shape
            call["num_panels"], call["num_words"] = num_panels, num_words
            call["x_row_stride"], call["out_width"] = 2 * num_words, num_panels * width
        for place in (_QKV, _GATE_UP):
            products[place]["eps"] = eps
        for place in (_OUT, _DOWN):
            products[place]["is_added"] = 1
        products[_GATE_UP]["is_gated"] = 1
        products[_GATE_UP]["out_width"] //= 2

    def _set_norms(self, rotary: np.void, layer: LayerWeights) -> None:
        for name, norm in (("q_norm", layer.q_norm), ("k_norm", layer.k_norm)):
            rotary[name] = 0 if norm is None else norm.data_ptr()

    def _set_shapes(self, config: DecoderConfig, shape: KvShape) -> None:
        rotary, head_dim = self._rotary, config.head_dim
        rotary["num_q_heads"], rotary["num_kv_heads"] = config.num_heads, config.num_kv_heads
        rotary["head_dim"], rotary["page_size"] = head_dim, shape.page_size
        rotary["eps"] = config.rms_eps
        row = config.q_size + 2 * config.kv_size
        for name, (kind, stride) in product("qkv", (("row", row), ("head", head_dim))):
            rotary[f"{name}_{kind}_stride"] = stride
        self._attention["q_row_stride"], self._attention["q_head_stride"] = row, head_dim

    def _room(self, num_rows: int) -> None:
        """For the activations of so many tokens, the same in all layers."""
        config = self._config
        mlp = self._products["out_width"][0, _GATE_UP]

        def new(width: int) -> Tensor:
            return torch.empty(num_rows, width, dtype=self._dtype)

        qkv, self._attended = new(config.q_size + 2 * config.kv_size), new(config.q_size)
        inner, scales = new(int(mlp)), torch.empty(num_rows)
        self._activations = (qkv, inner, scales)
        products, rotary = self._products, self._rotary
        products["scales"][:, (_QKV, _GATE_UP)] = scales.data_ptr()
        products["out"][:, _QKV] = rotary["q"] = self._attention["q"] = qkv.data_ptr()
        rotary["k"] = qkv[:, config.q_size :].data_ptr()
        rotary["v"] = qkv[:, config.q_size + config.kv_size :].data_ptr()
        self._attention["out"] = products["x"][:, _OUT] = self._attended.data_ptr()
        products["out"][:, _GATE_UP] = products["x"][:, _DOWN] = inner.data_ptr()

    def _in_order(self) -> list[Call]:
        calls = []
        for number in range(len(self._attention)):
            qkv, out, gate_up, down = (
                Call(
                    "linear",
                    "blendrun_linear_bf16",
                    self._products[number, place : place + 1],
                    False,
                )
                for place in range(4)
            )
            rotary, attention = (
                self._rotary[number : number + 1],
                self._attention[number : number + 1],
            )
            calls += [
                qkv,
                Call("rotary", "blendrun_rotate_and_write_bf16", rotary, True),
                Call("attention", "blendrun_run_attention", attention, True),
                *(out, gate_up, down),
            ]
        return calls[:-3]  # not those behind the last attention
