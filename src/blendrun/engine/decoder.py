"""One decoder for the Llama family, for inference, driven by a `DecoderConfig`.

Tokens of all requests of a step come as one flat batch; where K and V live and who sees whom is
the business of the `attend` callable. Rounds like transformers, so that float32 greedy output
agrees. One of several ranks has some of the heads, of the MLP's columns and of the vocabulary; what
ranks add up is whole on each. The caller holds `torch.inference_mode`.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from blendrun.engine.decoder_config import DecoderConfig
from blendrun.engine.products import linear
from blendrun.engine.rope import cos_sin, inverse_frequencies
from blendrun.engine.row_blocks import in_blocks
from blendrun.engine.tensor_group import ALONE, TensorGroup
from blendrun.engine.weights import DecoderWeights, LayerWeights
from blendrun.kernels.cpu.rms_norm import add_rms_norm
from blendrun.kernels.cpu.rotation import Rotation
from blendrun.kernels.cpu.silu_mul import silu_mul

# (layer, q [T, num_heads, D], k [T, num_kv_heads, D], v [T, num_kv_heads, D], rotation)
#   -> attention output [T, num_heads, D].
# q, k and v are strided over tokens; q and k are still to be turned by `rotation`, q may be
# overwritten. Scale: 1/sqrt(D).
Attend = Callable[[int, Tensor, Tensor, Tensor, Rotation], Tensor]


class Decoder:
    """A decoder-only transformer; holds weights and rope frequencies, no state of requests."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        row_block: int | None = None,
        group: TensorGroup = ALONE,
    ) -> None:
        """`config` is that of the whole model, `weights` are those of the group's shard.

        `row_block`: rows that are computed at a time (`row_blocks`); None: all of a step.
        """
        self.config = config.sharded(group.shard)  # heads and MLP of this rank
        self.weights = weights
        self.row_block = row_block
        self.group = group
        self._first_token = group.shard.piece(config.vocab_size).start
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
        layers, eps = self.weights.layers, self.config.rms_eps
        hidden = self._embed(token_ids)
        cos, sin = in_blocks(self._cos_sin, self.row_block, positions)
        norms = [*(layer.input_norm for layer in layers[1:]), self.weights.final_norm]
        x = add_rms_norm(hidden, None, layers[0].input_norm, eps)
        for index, (layer, next_norm) in enumerate(zip(layers, norms, strict=True)):
            rotation = Rotation(cos, sin, layer.q_norm, layer.k_norm, eps)
            mixed = self._attention(index, layer, x, rotation, attend)
            if index == len(layers) - 1 and rows is not None:
                # Nothing reads the other rows after the last attention.
                hidden, mixed = hidden[rows], mixed[rows]
            mixed = self.group.sum(self._linear(mixed, layer.out, layer.out_bias))
            x = add_rms_norm(hidden, mixed, layer.post_norm, eps)
            x = add_rms_norm(hidden, self.group.sum(self._mlp(layer, x)), next_norm, eps)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, vocab] in the model's dtype, of hidden states [R, H] from `forward`.

        One of several ranks has the columns of its piece of the vocabulary.
        """
        return self._linear(hidden, self.weights.head)

    def _embed(self, token_ids: Tensor) -> Tensor:
        table = self.weights.embedding
        if self.group.shard.size == 1:
            return F.embedding(token_ids, table)
        row = token_ids - self._first_token
        is_elsewhere = (row < 0) | (row >= len(table))
        mine = F.embedding(row.masked_fill(is_elsewhere, 0), table)
        return self.group.sum(mine.masked_fill_(is_elsewhere[:, None], 0.0))

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        (out,) = in_blocks(lambda block: (linear(block, weight, bias),), self.row_block, x)
        return out

    def _cos_sin(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return cos_sin(positions, self._frequencies, self._rope_factor)

    def _attention(
        self, index: int, layer: LayerWeights, x: Tensor, rotation: Rotation, attend: Attend
    ) -> Tensor:
        """Attention output [T, num_heads * D] of one layer, before its output projection."""
        config = self.config
        qkv = self._linear(x, layer.qkv, layer.qkv_bias)
        heads = qkv.view(x.shape[0], -1, config.head_dim)
        sizes = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        q, k, v = torch.split(heads, sizes, dim=1)
        return attend(index, q, k, v, rotation).reshape(x.shape[0], config.q_size)

    def _mlp(self, layer: LayerWeights, x: Tensor) -> Tensor:
        inner = silu_mul(self._linear(x, layer.gate_up, layer.gate_up_bias))
        return self._linear(inner, layer.down, layer.down_bias)
