"""The shape of a Llama-family decoder, read from a Hugging Face config.

Fills in what each architecture takes for granted (biases, qk-norm, default head counts). That
the config is supported at all was checked by `data.model_support`.
"""

from dataclasses import dataclass, replace
from typing import Any

from blendrun.cost.hf_config import Fields
from blendrun.cost.routed_experts import RoutedExperts, routed_experts
from blendrun.cost.tensor_shards import Shard
from blendrun.data.model_support import architecture, rope_settings

_DEFAULT_KV_HEADS = {
    "MistralForCausalLM": 8,
    "MixtralForCausalLM": 8,
    "Qwen2ForCausalLM": 32,
    "Qwen3ForCausalLM": 32,
    "Qwen3MoeForCausalLM": 4,
}


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int  # of layers without experts
    vocab_size: int
    rms_eps: float
    tied_embeddings: bool
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool  # on gate and up
    down_bias: bool
    qk_norm: bool
    experts: RoutedExperts
    normalise_experts: bool  # the weights of a token's experts add up to 1
    rope: dict[str, Any]  # see `data.model_support.rope_settings`
    max_position: int

    @classmethod
    def from_hf(cls, config: dict[str, Any]) -> "DecoderConfig":
        """The decoder of a Hugging Face config.json.

        Raises:
            InputError: the architecture is not supported.
        """
        kind = architecture(config)
        num_heads = config["num_attention_heads"]
        qwen2 = kind == "Qwen2ForCausalLM"
        # Mistral has no such switch, Qwen2 always has biases on q, k and v and never on o.
        mlp_bias = kind == "LlamaForCausalLM" and bool(config.get("mlp_bias", False))
        mistral = kind in ("MistralForCausalLM", "MixtralForCausalLM")
        attention_bias = not mistral and bool(config.get("attention_bias", False))
        return cls(
            num_layers=config["num_hidden_layers"],
            hidden_size=config["hidden_size"],
            num_heads=num_heads,
            num_kv_heads=_num_kv_heads(config, kind),
            head_dim=_head_dim(config, kind),
            intermediate_size=config["intermediate_size"],
            vocab_size=config["vocab_size"],
            rms_eps=config.get("rms_norm_eps", 1e-6),
            tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=qwen2 or attention_bias,
            out_bias=not qwen2 and attention_bias,
            mlp_bias=mlp_bias,
            down_bias=mlp_bias,
            qk_norm=kind in ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM"),
            experts=routed_experts(Fields(config, kind)),
            normalise_experts=kind == "MixtralForCausalLM" or bool(config.get("norm_topk_prob")),
            rope=rope_settings(config),
            max_position=config["max_position_embeddings"],
        )

    def sharded(self, shard: Shard) -> "DecoderConfig":
        """The part of one rank. `vocab_size` and `hidden_size` stay those of the whole.

        What all ranks add up gets its bias from the first.
        """
        is_first = shard.rank == 0
        return replace(
            self,
            num_heads=len(shard.heads(self.num_heads)),
            num_kv_heads=len(shard.kv_heads(self.num_kv_heads)),
            intermediate_size=len(shard.piece(self.intermediate_size)),
            experts=replace(
                self.experts, intermediate_size=len(shard.piece(self.experts.intermediate_size))
            ),
            out_bias=self.out_bias and is_first,
            down_bias=self.down_bias and is_first,
        )

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim


def _num_kv_heads(config: dict[str, Any], kind: str) -> int:
    num_heads = int(config["num_attention_heads"])
    if "num_key_value_heads" not in config:
        return _DEFAULT_KV_HEADS.get(kind, num_heads)
    return int(config["num_key_value_heads"] or num_heads)


def _head_dim(config: dict[str, Any], kind: str) -> int:
    if kind == "Qwen3ForCausalLM" and config.get("head_dim") is None:
        return 128
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
