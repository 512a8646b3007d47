"""One decoder for the Llama family, for inference, driven by a `DecoderConfig`.

Tokens of all requests of a step come as one flat batch; where K and V live and who sees whom is
the business of the `attend` callable. Rounds like transformers, so that float32 greedy output
agrees. The caller holds `torch.inference_mode`.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from blendrun.engine.attend import Attend
from blendrun.engine.decoder_config import DecoderConfig
from blendrun.engine.executors import Executor, SequentialExecutor
from blendrun.engine.operators import Operator, StepOperators
from blendrun.engine.products import linear
from blendrun.engine.rope import cos_sin, inverse_frequencies
from blendrun.engine.row_blocks import in_blocks
from blendrun.engine.step_part import StepPart
from blendrun.engine.weights import DecoderWeights, LayerWeights
from blendrun.kernels.cpu.rms_norm import add_rms_norm
from blendrun.kernels.cpu.rotation import Rotation
from blendrun.kernels.cpu.silu_mul import silu_mul


class Decoder:
    """A decoder-only transformer; holds weights and rope frequencies, no state of requests."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        row_block: int | None = None,
        executor: Executor | None = None,
    ) -> None:
        """`row_block`: rows that are computed at a time (`row_blocks`); None: all of a step.

        `executor` runs the operators of `forward`; None: one after the other.
        """
        self._executor = executor or SequentialExecutor()
        self.config = config
        self.weights = weights
        self.row_block = row_block
        frequencies, self._rope_factor = inverse_frequencies(
            config.rope, config.head_dim, config.max_position
        )
        self._frequencies = frequencies.to(weights.embedding.device)

    @property
    def dtype(self) -> torch.dtype:
        return self.weights.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self.weights.embedding.device

    def forward(
        self, token_ids: Tensor, positions: Tensor, attend: Attend, rows: Tensor | None = None
    ) -> Tensor:
        """Hidden states [R, H] after the final norm, ready for `logits`.

        Args:
            token_ids: int64 [T].
            positions: int64 [T], position of each token in its own sequence.
            attend: called once per layer, in order.
            rows: int64 [R], the tokens that need logits; None = all T.
        """
        part = StepPart(token_ids, positions, attend, rows)
        self._executor.run(self.operators([part]))
        return part.x

    def operators(self, parts: Sequence[StepPart]) -> Sequence[Operator]:
        """All of a step's operators before the output head; they leave hidden states in `x`."""
        step, last = StepOperators(), len(self.weights.layers) - 1
        for number, part in enumerate(parts):
            step.add("embedding", 0, number, "compute", partial(self._embed, part))
        for layer, weights in enumerate(self.weights.layers):
            for number, part in enumerate(parts):
                step.add("qkv", layer, number, "compute", partial(self._qkv, weights, part))
                attention = partial(self._attention, layer, weights, part)
                step.add_attention(layer, number, part.attention, attention)
                out = partial(self._out, weights, part, layer == last)
                step.add("out", layer, number, "compute", out)
                mlp = partial(self._mlp, weights, self._norm_after(layer), part)
                step.add("mlp", layer, number, "compute", mlp)
        return step.all()

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, vocab] in the model's dtype, of hidden states [R, H] from `forward`."""
        return self._linear(hidden, self.weights.head)

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        (out,) = in_blocks(lambda block: (linear(block, weight, bias),), self.row_block, x)
        return out

    def _cos_sin(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return cos_sin(positions, self._frequencies, self._rope_factor)

    def _norm_after(self, layer: int) -> Tensor:
        layers = self.weights.layers
        return layers[layer + 1].input_norm if layer + 1 < len(layers) else self.weights.final_norm

    def _embed(self, part: StepPart) -> None:
        part.hidden = F.embedding(part.token_ids, self.weights.embedding)
        part.cos, part.sin = in_blocks(self._cos_sin, self.row_block, part.positions)
        norm = self.weights.layers[0].input_norm
        part.x = add_rms_norm(part.hidden, None, norm, self.config.rms_eps)

    def _qkv(self, layer: LayerWeights, part: StepPart) -> None:
        part.x = self._linear(part.x, layer.qkv, layer.qkv_bias)

    def _attention(self, index: int, layer: LayerWeights, part: StepPart) -> None:
        config, num_tokens = self.config, len(part.token_ids)
        heads = part.x.view(num_tokens, -1, config.head_dim)
        sizes = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        q, k, v = torch.split(heads, sizes, dim=1)
        rotation = Rotation(part.cos, part.sin, layer.q_norm, layer.k_norm, config.rms_eps)
        part.x = part.attend(index, q, k, v, rotation).reshape(num_tokens, config.q_size)

    def _out(self, layer: LayerWeights, part: StepPart, is_last: bool) -> None:
        if is_last and part.rows is not None:
            # Nothing reads the other rows after the last attention.
            part.hidden, part.x = part.hidden[part.rows], part.x[part.rows]
        out = self._linear(part.x, layer.out, layer.out_bias)
        part.x = add_rms_norm(part.hidden, out, layer.post_norm, self.config.rms_eps)

    def _mlp(self, layer: LayerWeights, next_norm: Tensor, part: StepPart) -> None:
        inner = silu_mul(self._linear(part.x, layer.gate_up, layer.gate_up_bias))
        out = self._linear(inner, layer.down, layer.down_bias)
        part.x = add_rms_norm(part.hidden, out, next_norm, self.config.rms_eps)
