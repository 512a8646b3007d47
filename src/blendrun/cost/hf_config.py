"""Reads the fields of a Hugging Face `config.json` that decide a model's size.

One place for the differences between families (biases, qk-norm, experts, latent attention).
It does not know whether the engine can run the model: planning covers more than the engine.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blendrun.errors import InputError

DENSE_TYPES = ("llama", "mistral", "qwen2", "qwen3")
EXPERT_TYPES = ("mixtral", "qwen3_moe")
LATENT_TYPES = ("deepseek_v2", "deepseek_v3")
_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "MixtralForCausalLM": "mixtral",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
}
MODEL_TYPES = DENSE_TYPES + EXPERT_TYPES + LATENT_TYPES


@dataclass(frozen=True, slots=True)
class Fields:
    """The table of a `config.json`, with messages that name the model and the field."""

    table: Mapping[str, Any]
    name: str

    def integer(self, key: str, default: int | None = None) -> int:
        """Field `key`, a whole number above zero; `default` where it is missing or null.

        Raises:
            InputError: it is missing without default, or is no such number.
        """
        value = self.table.get(key)
        if value is None:
            value = default
        if value is None:
            raise InputError(f"{self.name}: the model config has no '{key}'")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{self.name}: '{key}' must be a whole number above 0, not {value!r}")
        return value

    def count(self, key: str) -> int:
        """Field `key`, a whole number; 0 where it is missing, null or zero."""
        return 0 if self.table.get(key) in (None, 0) else self.integer(key)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.table.get(key)
        return default if value is None else bool(value)

    @property
    def model_type(self) -> str:
        """Family of the model: that of its architecture where it names one, else `model_type`.

        Raises:
            InputError: a family whose size this file cannot tell.
        """
        names = self.table.get("architectures") or [None]
        model_type = _ARCHITECTURES.get(names[0], self.table.get("model_type"))
        if model_type not in MODEL_TYPES:
            raise InputError(
                f"{self.name}: model type {model_type!r} is not supported",
                f"supported for planning: {', '.join(MODEL_TYPES)}",
            )
        return str(model_type)

    @property
    def num_kv_heads(self) -> int:
        return self.integer("num_key_value_heads", self.integer("num_attention_heads"))

    @property
    def head_dim(self) -> int:
        """Width of one query head; for latent attention the mean of its QK and V widths."""
        if self.model_type in LATENT_TYPES:
            qk_dim = self.integer("qk_nope_head_dim") + self.integer("qk_rope_head_dim")
            return (qk_dim + self.integer("v_head_dim")) // 2
        return self.integer(
            "head_dim", self.integer("hidden_size") // self.integer("num_attention_heads")
        )

    @property
    def latent_width(self) -> int:
        """Elements cached per token and layer by latent attention; 0 for the other kinds."""
        if self.model_type not in LATENT_TYPES:
            return 0
        return self.integer("kv_lora_rank") + self.integer("qk_rope_head_dim")

    @property
    def layer_weight_bits(self) -> float | None:
        """Bits of a weight in the layers of a quantised model, scales included, else None.

        Raises:
            InputError: it is no such number.
        """
        value = self.table.get("layer_weight_bits")
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= 32:
            raise InputError(
                f"{self.name}: 'layer_weight_bits' must be a number from 1 to 32, not {value!r}"
            )
        return float(value)

    @property
    def tied(self) -> bool:
        """Whether the output head is the embedding table."""
        return self.flag("tie_word_embeddings")
