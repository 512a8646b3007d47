"""One decoder for the Llama family, for inference, driven by a `DecoderConfig`.

Tokens of all requests of a step come as one flat batch; where K and V live and who sees whom is
the business of the `attend` callable. Rounds like transformers, so that float32 greedy output
agrees. The caller holds `torch.inference_mode`.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from blendrun.engine.decoder_config import DecoderConfig
from blendrun.engine.rope import cos_sin, inverse_frequencies, rotate
from blendrun.engine.row_blocks import in_blocks
from blendrun.engine.weights import DecoderWeights, LayerWeights

# (layer, q [T, num_heads, D], k [T, num_kv_heads, D], v [T, num_kv_heads, D])
#   -> attention output [T, num_heads, D].
# q and k are contiguous and rotated; v is strided over tokens. Scale: 1/sqrt(D).
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class Decoder:
    """A decoder-only transformer; holds weights and rope frequencies, no state of requests."""

    def __init__(
        self, config: DecoderConfig, weights: DecoderWeights, row_block: int | None = None
    ) -> None:
        """`row_block`: rows that are computed at a time (`row_blocks`); None: all of a step."""
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
        hidden = F.embedding(token_ids, self.weights.embedding)
        cos, sin = in_blocks(self._cos_sin, self.row_block, positions)
        last = len(self.weights.layers) - 1
        for index, layer in enumerate(self.weights.layers):
            heads = in_blocks(partial(self._heads, layer), self.row_block, hidden, cos, sin)
            mixed = attend(index, *heads).reshape(len(hidden), self.config.q_size)
            if index == last and rows is not None:
                # Nothing reads the other rows after the last attention.
                hidden, mixed = hidden[rows], mixed[rows]
            (hidden,) = in_blocks(partial(self._after, layer), self.row_block, hidden, mixed)
        (normed,) = in_blocks(self._final, self.row_block, hidden)
        return normed

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [R, vocab] of hidden states [R, H] from `forward`."""
        (logits,) = in_blocks(self._head, self.row_block, hidden)
        return logits

    def _cos_sin(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return cos_sin(positions, self._frequencies, self._rope_factor, self.dtype)

    def _final(self, hidden: Tensor) -> tuple[Tensor]:
        return (self._norm(hidden, self.weights.final_norm),)

    def _head(self, hidden: Tensor) -> tuple[Tensor]:
        return (F.linear(hidden, self.weights.head).float(),)

    def _heads(
        self, layer: LayerWeights, hidden: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v of one layer, as `Attend` takes them."""
        config = self.config
        qkv = F.linear(self._norm(hidden, layer.input_norm), layer.qkv, layer.qkv_bias)
        heads = qkv.view(hidden.shape[0], -1, config.head_dim)
        sizes = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        q, k, v = torch.split(heads, sizes, dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def _after(self, layer: LayerWeights, hidden: Tensor, mixed: Tensor) -> tuple[Tensor]:
        """What comes behind the attention output `mixed` of one layer; takes `hidden` over."""
        hidden += F.linear(mixed, layer.out, layer.out_bias)
        hidden += self._mlp(layer, self._norm(hidden, layer.post_norm))
        return (hidden,)

    def _mlp(self, layer: LayerWeights, x: Tensor) -> Tensor:
        gate, up = F.linear(x, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
        return F.linear(F.silu(gate).mul_(up), layer.down, layer.down_bias)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.config.rms_eps)
