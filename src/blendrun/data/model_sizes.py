"""Any `config.json` as one of a family whose size is known: what planning for vLLM goes by.

Planning needs sizes only, and they go by many names. Layers of a family that nobody here knows are
taken for Llama's, with experts or a latent cache where the config has fields of them.
"""

from dataclasses import dataclass
from typing import Any

from blendrun.data.model_support import SUPPORTED, check_sizes
from blendrun.data.weight_bits import weight_bits
from blendrun.errors import InputError

LAYER_BITS = "layer_weight_bits"  # `cost.hf_config` reads it; quantised layers only
_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config", "decoder_config")
_OTHER_PARTS = ("vision_config", "audio_config", "visual", "mm_vision_tower", "vision_tower")
_NAMES = {  # of a size, most usual first; a point leads into a table
    "hidden_size": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len",
                                "seq_length", "max_sequence_length", "model_max_length"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv",
                            "multi_query_group_num", "num_attention_groups",
                            "attn_config.kv_n_heads"),
    "head_dim": ("head_dim", "kv_channels", "attention_head_dim"),
    "intermediate_size": ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner", "d_ff",
                          "ffn_config.ffn_hidden_size"),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts",
                    "ffn_config.moe_num_experts"),
    "num_experts_per_tok": ("num_experts_per_tok", "num_experts_per_token", "moe_top_k",
                            "moe_topk", "top_k_experts", "num_selected_experts", "moe_k",
                            "ffn_config.moe_top_k"),
    "moe_intermediate_size": ("moe_intermediate_size", "expert_ffn_hidden_size",
                              "moe_ffn_hidden_size"),
}  # fmt: skip
_LATENT = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_LATENT_TYPES = ("deepseek_v2", "deepseek_v3")  # whose layers are known
_DEFAULT_POSITIONS = 2048  # what vLLM takes where a config does not say
# layers with a state instead of K and V of each token
_STATE_KEYS = ("hybrid_override_pattern", "ssm_cfg", "ssm_state_size", "mamba_d_state",
               "state_size", "attn_layer_period", "attn_layer_indices", "linear_attn_config",
               "linear_num_key_heads", "lru_width", "conv_L_cache",
               "full_attention_interval")  # fmt: skip
_STATE_LAYERS = ("linear", "mamba", "conv", "recurrent", "ssm", "rwkv")


@dataclass(frozen=True, slots=True)
class PlannedSizes:
    config: dict[str, Any]  # of a family that `cost.hf_config` knows
    notes: tuple[str, ...]  # what the estimate takes for granted


def planned_sizes(config: dict[str, Any]) -> PlannedSizes:
    """What a `config` says of its size.

    Raises:
        InputError: naming what it does not say, or layers without K and V.
    """
    table = _text_part(config)
    _check_has_kv(table)
    family = _family(table)
    notes = []
    if family in SUPPORTED.values():
        sizes = {**table, "architectures": None, "model_type": family}
        check_sizes(sizes)
    else:
        sizes, assumed = _like_known(table)
        is_latent = sizes["model_type"] == "deepseek_v2"
        like = "DeepSeek-V2" if is_latent else "Llama"
        if is_latent and family in _LATENT_TYPES:
            sizes["model_type"] = family
        else:
            notes.append(
                f"the estimate is for {like}-like layers of these sizes: "
                f"those of {family} are not known here{assumed}"
            )
    if table is not config or any(key in config for key in _OTHER_PARTS):
        notes.append("the estimate is for the text part of the model, and prompts are text")
    window = _whole(table.get("sliding_window"))
    if window and table.get("use_sliding_window") is not False:
        notes.append(f"the estimate takes windows of attention ({window:,} tokens) as full")
    quantised = config.get("quantization_config") or config.get("compression_config")
    quantised = quantised or table.get("quantization_config")
    if isinstance(quantised, dict) and quantised:
        method, bits = weight_bits(quantised)
        sizes[LAYER_BITS] = bits
        notes.append(f"weights of the layers count {bits:.3g} bits ({method}); arithmetic as bf16")
    return PlannedSizes(sizes, tuple(notes))


def _text_part(config: dict[str, Any]) -> dict[str, Any]:
    """The table of the language model; what it leaves out stands in the one around it."""
    for key in _TEXT_PARTS:
        part = config.get(key)
        if isinstance(part, dict):
            around = {k: v for k, v in config.items() if k not in ("architectures", "model_type")}
            around.pop(key)
            outer_type = {"model_type": config.get("model_type")}
            return _text_part({**around, **outer_type, **part})
    return config


def _family(table: dict[str, Any]) -> str:
    """Family of the architecture where that is known, else how the config calls the model."""
    known = {
        **SUPPORTED,
        "DeepseekV2ForCausalLM": "deepseek_v2",
        "DeepseekV3ForCausalLM": "deepseek_v3",
    }
    names = table.get("architectures") or [None]
    return str(known.get(names[0]) or table.get("model_type") or names[0])


def _check_has_kv(table: dict[str, Any]) -> None:
    """Raises InputError where layers keep a state of a request instead of K and V."""
    kinds = _entries(table, "layer_types") or _entries(table, "layers_block_type")
    found = sorted({str(k) for k in kinds if any(word in str(k) for word in _STATE_LAYERS)})
    if not kinds:  # a list says it better: it may name attention only
        found = [key for key in _STATE_KEYS if table.get(key)]
        if 0 in _entries(table, "attn_type_list"):
            found.append("attn_type_list")
    if found:
        raise InputError(
            "models whose layers keep a state instead of K and V cannot be planned "
            f"({', '.join(found)} in config.json)",
            "plans count and share KV; use a model with attention in all layers",
        )


def _like_known(table: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """A config of Llama, Qwen3-MoE or DeepSeek-V2 of the same sizes, and what was assumed."""
    hidden = _required(table, "hidden_size")
    heads = _required(table, "num_attention_heads")
    sizes: dict[str, Any] = {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_hidden_layers": _required(table, "num_hidden_layers"),
        "vocab_size": _required(table, "vocab_size"),
        "num_key_value_heads": _kv_heads(table, heads),
        "head_dim": _size(table, "head_dim") or max(hidden // heads, 1),
        "tie_word_embeddings": bool(table.get("tie_word_embeddings")),
    }
    assumed = []
    positions = _size(table, "max_position_embeddings")
    if positions is None:
        positions = _DEFAULT_POSITIONS
        assumed.append(f"contexts of {positions:,} tokens")
    inner = _size(table, "intermediate_size") or _size(table, "moe_intermediate_size")
    if inner is None:
        factor = _whole(table.get("expansion_ratio")) or 4  # as in the first transformers
        inner = factor * hidden
        assumed.append(f"MLPs {factor} times as wide as the hidden size")
    sizes |= {"max_position_embeddings": positions, "intermediate_size": inner}
    if all(table.get(key) for key in _LATENT):
        latent = (*_LATENT, "q_lora_rank")
        sizes |= {"model_type": "deepseek_v2", **{key: table.get(key) for key in latent}}
    if (_size(table, "num_experts") or 0) > 1:
        sizes |= _experts(table, sizes)
    text = f"; the config does not say, so assumed: {', '.join(assumed)}" if assumed else ""
    return sizes, text


def _experts(table: dict[str, Any], sizes: dict[str, Any]) -> dict[str, Any]:
    """Fields of the experts, as the family that `sizes` names has them."""
    width = _size(table, "moe_intermediate_size") or sizes["intermediate_size"]
    shared = _whole(table.get("n_shared_experts")) or _whole(table.get("num_shared_experts"))
    if not shared:
        shared = -(-(_whole(table.get("shared_expert_intermediate_size")) or 0) // width)
    fields = {
        "num_experts_per_tok": _required(table, "num_experts_per_tok"),
        "moe_intermediate_size": width,
        "n_shared_experts": shared,
    }
    count = _required(table, "num_experts")
    first = _whole(table.get("first_k_dense_replace")) or 0
    every = next(
        (
            found
            for key in ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq")
            if (found := _whole(table.get(key)))
        ),
        1,
    )
    if sizes["model_type"] == "deepseek_v2":
        return {
            **fields,
            "n_routed_experts": count,
            "first_k_dense_replace": first,
            "moe_layer_freq": every,
        }
    dense = {*range(first), *_entries(table, "mlp_only_layers")}
    return {
        **fields,
        "model_type": "qwen3_moe",
        "num_experts": count,
        "decoder_sparse_step": every,
        "mlp_only_layers": sorted(dense),
    }


def _kv_heads(table: dict[str, Any], heads: int) -> int:
    if table.get("multi_query") and not table.get("new_decoder_architecture"):
        return 1  # Falcon and StarCoder state as many as there are query heads
    if table.get("multi_query_attention") is False:
        return heads
    return _size(table, "num_key_value_heads") or heads


def _required(table: dict[str, Any], size: str) -> int:
    found = _size(table, size)
    if found is None:
        names = ", ".join(_NAMES[size])
        raise InputError(f"config.json lacks {size}", f"it may also be called: {names}")
    return found


def _entries(table: dict[str, Any], key: str) -> list[Any]:
    value = table.get(key)
    return value if isinstance(value, list) else []


def _size(table: dict[str, Any], size: str) -> int | None:
    """A size under any of its names; the mean where layers differ."""
    for name in _NAMES[size]:
        outer, _, inner = name.rpartition(".")
        where = table.get(outer) if outer else table
        found = _whole(where.get(inner)) if isinstance(where, dict) else None
        if found is not None:
            return found
    return None


def _whole(value: Any) -> int | None:
    """A number above zero; of a list of them the mean, rounded up."""
    if isinstance(value, list) and value and all(_whole(each) for each in value):
        return -(-sum(value) // len(value))
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and value > 0 else None
