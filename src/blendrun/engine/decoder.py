"""One decoder for the Llama family, for inference, driven by a `DecoderConfig`.

Tokens of all requests of a step come as one flat batch; where K and V live and who sees whom is
the business of the `attend` callable. Rounds like transformers, so that float32 greedy output
agrees. One of several ranks has some of the heads, of the MLP's columns and of the vocabulary; what
ranks add up is whole on each. The caller holds `torch.inference_mode`.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from blendrun.engine.attend import Attend
from blendrun.engine.decoder_config import DecoderConfig
from blendrun.engine.decoder_weights import DecoderWeights, ExpertWeights, LayerWeights
from blendrun.engine.elementwise import PLAIN, Elementwise
from blendrun.engine.executors import Executor, SequentialExecutor
from blendrun.engine.experts import route, visit
from blendrun.engine.operators import Operator, StepOperators
from blendrun.engine.products import is_panels, linear
from blendrun.engine.rope import cos_sin, inverse_frequencies
from blendrun.engine.row_blocks import in_blocks
from blendrun.engine.sampler import PLAIN_TOKENS, TokenKernels
from blendrun.engine.step_part import StepPart
from blendrun.engine.tensor_group import ALONE, TensorGroup
from blendrun.kernels.cpu import linear as panels
from blendrun.kernels.cpu.argmax import Best
from blendrun.kernels.cpu.rotation import Rotation


class Decoder:
    """A decoder-only transformer; holds weights and rope frequencies, no state of requests."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        row_block: int | None = None,
        executor: Executor | None = None,
        group: TensorGroup = ALONE,
        elementwise: Elementwise = PLAIN,
        tokens: TokenKernels = PLAIN_TOKENS,
    ) -> None:
        """`config` is that of the whole model, `weights` are those of the group's shard.

        `row_block`: rows that are computed at a time (`row_blocks`); None: all of a step.
        `executor` runs the operators of `forward`; None: one after the other.
        `elementwise` and `tokens` are the kernels of the weights' device.
        """
        self._elementwise, self.tokens = elementwise, tokens
        self._executor = executor or SequentialExecutor()
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
        return self.forward_parts([StepPart(token_ids, positions, attend, rows)], self._executor)

    @property
    def is_sequential(self) -> bool:
        """Whether operators are run one after the other, and nobody is told of each."""
        return isinstance(self._executor, SequentialExecutor)

    def forward_with(
        self,
        layers: Callable[[Tensor, Tensor, Tensor], Tensor],
        token_ids: Tensor,
        positions: Tensor,
        rows: Tensor,
    ) -> Tensor:
        """As `forward`, with all layers up to the last attention computed by somebody else.

        `layers` gets embeddings [T, H], which become what is added to the result of that attention,
        and cosines and sines [T, D / 2]; gives that result, [T, num_heads * D].
        """
        part = StepPart(token_ids, positions, _no_attend, rows)
        self._embed(part)
        assert part.branch is not None
        part.hidden, part.branch = part.branch, None
        part.x = layers(part.hidden, part.cos, part.sin)
        last = self.weights.layers[-1]
        self._out(last, part, is_last=True)
        self._mlp(last, part)
        self._final_norm(part)
        return part.x

    def forward_parts(self, parts: Sequence[StepPart], executor: Executor) -> Tensor:
        """Hidden states [R, H] of all parts, one after the other, as `forward`."""
        executor.run(self.operators(parts))
        return parts[0].x if len(parts) == 1 else torch.cat([part.x for part in parts])

    def operators(self, parts: Sequence[StepPart]) -> Sequence[Operator]:
        """All of a step's operators before the output head; they leave hidden states in `x`."""
        step, last = StepOperators(), len(self.weights.layers) - 1
        numbered = tuple(enumerate(parts))
        for number, part in numbered:
            step.add("embedding", 0, number, "compute", partial(self._embed, part), part.made)
            self._add_sum(step, 0, number, part)
        for layer, weights in enumerate(self.weights.layers):
            for number, part in numbered:
                qkv = partial(self._qkv, weights, part, layer == 0)
                step.add("qkv", layer, number, "compute", qkv, part.made)
                attention = partial(self._attention, layer, weights, part)
                step.add_attention(layer, number, part.attention, attention, part.made)
                out = partial(self._out, weights, part, layer == last)
                step.add("out", layer, number, "compute", out, part.made)
                self._add_sum(step, layer, number, part)
                mlp = partial(self._mlp, weights, part)
                step.add("mlp", layer, number, "compute", mlp, part.made)
                self._add_sum(step, layer, number, part)
        for number, part in numbered:
            norm = partial(self._final_norm, part)
            step.add("norm", last, number, "compute", norm, part.made)
        return step.all()

    def _add_sum(self, step: StepOperators, layer: int, number: int, part: StepPart) -> None:
        if self.group.shard.size > 1:
            step.add("sum", layer, number, "network", partial(self._sum, part), part.made)

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, vocab] in the model's dtype, of hidden states [R, H] from `forward`.

        One of several ranks has the columns of its piece of the vocabulary.
        """
        return self._linear(hidden, self.weights.head)

    def best(self, hidden: Tensor) -> Best:
        """Of each row of `logits`; written nowhere where the head is in panels."""
        if self.weights.screen is not None:
            return self.weights.screen.best(hidden)[0]
        if is_panels(self.weights.head):
            return panels.linear_argmax(hidden, self.weights.head)
        return self.tokens.best(self.logits(hidden))

    def _linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, eps: float | None = None
    ) -> Tensor:
        (out,) = in_blocks(lambda block: (linear(block, weight, bias, eps),), self.row_block, x)
        return out

    def _cos_sin(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return cos_sin(positions, self._frequencies, self._rope_factor)

    def _embed(self, part: StepPart) -> None:
        part.cos, part.sin = in_blocks(self._cos_sin, self.row_block, part.positions)
        table = self.weights.embedding
        if self.group.shard.size == 1:
            part.branch = F.embedding(part.token_ids, table)
            return
        row = part.token_ids - self._first_token
        is_elsewhere = (row < 0) | (row >= len(table))
        mine = F.embedding(row.masked_fill(is_elsewhere, 0), table)
        part.branch = mine.masked_fill_(is_elsewhere[:, None], 0.0)

    def _sum(self, part: StepPart) -> None:
        assert part.branch is not None
        part.branch = self.group.sum(part.branch)

    def _add(self, part: StepPart, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        """Adds a product to the residual stream; at the next norm, if ranks add up theirs first."""
        if is_panels(weight) and self.group.shard.size == 1:
            panels.linear_add(x, weight, bias, part.hidden)
            part.branch = None
        else:
            part.branch = self._linear(x, weight, bias)

    def _norm(self, part: StepPart, weight: Tensor | None) -> tuple[Tensor, float | None]:
        """Of the residual stream, when all is added.

        Without a `weight`, which is in the panels then, the residual stream itself, and what the
        product needs to norm it.
        """
        eps = self.config.rms_eps
        if weight is not None:
            return self._elementwise.add_rms_norm(part.hidden, part.branch, weight, eps), None
        if part.branch is not None:
            part.hidden += part.branch
        return part.hidden, eps

    def _qkv(self, layer: LayerWeights, part: StepPart, is_first: bool) -> None:
        if is_first:
            assert part.branch is not None
            part.hidden, part.branch = part.branch, None
        x, eps = self._norm(part, layer.input_norm)
        part.x = self._linear(x, layer.qkv, layer.qkv_bias, eps)

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
        self._add(part, part.x, layer.out, layer.out_bias)

    def _mlp(self, layer: LayerWeights, part: StepPart) -> None:
        (x, eps), mlp = self._norm(part, layer.post_norm), layer.mlp
        if isinstance(mlp, ExpertWeights):
            part.branch = self._experts(mlp, x)
            return
        if is_panels(mlp.gate_up):
            inner = panels.linear_silu_mul(x, mlp.gate_up, mlp.gate_up_bias, eps=eps)
        else:
            inner = self._elementwise.silu_mul(self._linear(x, mlp.gate_up, mlp.gate_up_bias))
        self._add(part, inner, mlp.down, mlp.down_bias)

    def _experts(self, experts: ExpertWeights, x: Tensor) -> Tensor:
        # all ranks have the same x and the same router: they choose alike
        logits = self._linear(x, experts.router)
        per_token = self.config.experts.per_token
        expert, share = route(logits, per_token, self.config.normalise_experts)
        return visit(x, expert, share, experts, self._elementwise.silu_mul, self.row_block)

    def _final_norm(self, part: StepPart) -> None:
        part.x, _ = self._norm(part, self.weights.final_norm)


def _no_attend(*_: object) -> Tensor:
    raise AssertionError("somebody else attends")
