"""The weights of a decoder, or a rank's part of them: which matrices there are, and their shapes.

Matrices are [out, in] as in torch's linear. H hidden, D head_dim, I the middle of an MLP or of an
expert, E experts; heads and I are those of the rank. Knows no files.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from blendrun.cost.tensor_shards import WHOLE, Shard
from blendrun.engine.decoder_config import DecoderConfig
from blendrun.kernels.cpu.screened_argmax import Screen

Stack = Tensor | tuple[Tensor, ...]  # one tensor [G, out, in], or G packed ones


@dataclass(frozen=True, slots=True)
class MlpWeights:
    """The MLP of a layer without experts."""

    gate_up: Tensor  # [2 I, H], gate first
    gate_up_bias: Tensor | None
    down: Tensor  # [H, I]
    down_bias: Tensor | None


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """The routed experts of a layer; every rank has the whole router."""

    router: Tensor  # [E, H]
    gate_up: Stack  # [E, 2 I, H], gate first
    down: Stack  # [E, H, I]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    input_norm: Tensor | None  # [H]; None: it is in the panels of qkv
    qkv: Tensor  # [(num_heads + 2 num_kv_heads) D, H]
    qkv_bias: Tensor | None
    q_norm: Tensor | None  # [D]
    k_norm: Tensor | None  # [D]
    out: Tensor  # [H, num_heads D]
    out_bias: Tensor | None
    post_norm: Tensor | None  # [H]; None: it is in the panels of the MLP's gate and up
    mlp: MlpWeights | ExpertWeights


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    embedding: Tensor  # [vocab, H], of the rank's token ids
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # [H]
    head: Tensor  # [vocab, H]; the embedding itself where the two are tied
    screen: Screen | None = None  # of the head, where best tokens are found faster by it


def empty_weights(
    config: DecoderConfig,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    shard: Shard = WHOLE,
) -> DecoderWeights:
    """Uninitialised weights of the right shapes; `config` is that of the whole model."""
    config, num_tokens = config.sharded(shard), len(shard.piece(config.vocab_size))

    def new(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    def new_if(wanted: bool, *shape: int) -> Tensor | None:
        return new(*shape) if wanted else None

    hidden, qkv_size = config.hidden_size, config.q_size + 2 * config.kv_size

    def mlp(layer: int) -> MlpWeights | ExpertWeights:
        if layer in config.experts.layers:
            num, inner = config.experts.num_experts, config.experts.intermediate_size
            return ExpertWeights(
                router=new(num, hidden),
                gate_up=new(num, 2 * inner, hidden),
                down=new(num, hidden, inner),
            )
        inner = config.intermediate_size
        return MlpWeights(
            gate_up=new(2 * inner, hidden),
            gate_up_bias=new_if(config.mlp_bias, 2 * inner),
            down=new(hidden, inner),
            down_bias=new_if(config.down_bias, hidden),
        )

    embedding = new(num_tokens, hidden)
    layers = tuple(
        LayerWeights(
            input_norm=new(hidden),
            qkv=new(qkv_size, hidden),
            qkv_bias=new_if(config.qkv_bias, qkv_size),
            q_norm=new_if(config.qk_norm, config.head_dim),
            k_norm=new_if(config.qk_norm, config.head_dim),
            out=new(hidden, config.q_size),
            out_bias=new_if(config.out_bias, hidden),
            post_norm=new(hidden),
            mlp=mlp(layer),
        )
        for layer in range(config.num_layers)
    )
    head = embedding if config.tied_embeddings else new(num_tokens, hidden)
    return DecoderWeights(embedding, layers, new(hidden), head)
