"""Counts a model's parameters from its config, without its weights.

Follows the tensors of the published checkpoints, so the totals are exact for the families in
`hf_config`. Extra prediction layers (DeepSeek-V3's MTP) are not counted: nobody runs them here.
"""

from dataclasses import dataclass

from blendrun.cost.hf_config import LATENT_TYPES, Fields
from blendrun.cost.routed_experts import routed_experts


@dataclass(frozen=True, slots=True)
class ParamCount:
    """Parameters of a decoder, apart by who reads them."""

    body_params: int  # the layers' parameters that one token passes through
    head_params: int  # output head, counted also where it is the embedding table
    total_params: int  # everything that lies in memory
    num_experts: int  # routed experts per layer; 0 for dense models
    experts_per_token: int
    num_expert_layers: int
    expert_params: int  # of one routed expert of one layer


def count_params(fields: Fields) -> ParamCount:
    """Parameters of the model that `fields` describes.

    Raises:
        InputError: a field is missing, or the family is unknown.
    """
    hidden = fields.integer("hidden_size")
    num_layers = fields.integer("num_hidden_layers")
    experts = routed_experts(fields)
    num_experts, expert_layers = experts.num_experts, len(experts.layers)
    expert = 3 * hidden * experts.intermediate_size
    # router (one row per expert), DeepSeek-V3's correction bias, experts that every token visits
    fixed = num_experts * hidden + fields.count("n_shared_experts") * expert
    if fields.model_type == "deepseek_v3":
        fixed += num_experts
    dense_mlp = _dense_mlp(fields) if num_layers > expert_layers else 0
    common = (
        num_layers * (_attention(fields) + 2 * hidden)
        + (num_layers - expert_layers) * dense_mlp
        + expert_layers * fixed
        + hidden  # final norm
    )
    table = fields.integer("vocab_size") * hidden
    return ParamCount(
        body_params=common + expert_layers * experts.per_token * expert,
        head_params=table,
        total_params=common + expert_layers * num_experts * expert + table * (2 - fields.tied),
        num_experts=num_experts,
        experts_per_token=experts.per_token,
        num_expert_layers=expert_layers,
        expert_params=expert,
    )


def _attention(fields: Fields) -> int:
    if fields.model_type in LATENT_TYPES:
        return _latent_attention(fields)
    hidden = fields.integer("hidden_size")
    query = fields.integer("num_attention_heads") * fields.head_dim
    key_value = 2 * fields.num_kv_heads * fields.head_dim
    weights = hidden * (query + key_value) + query * hidden
    if fields.model_type == "qwen2":
        return weights + query + key_value  # bias on Q, K and V, none on the output
    if fields.model_type in ("qwen3", "qwen3_moe"):
        weights += 2 * fields.head_dim  # norms of Q and K
    if fields.flag("attention_bias"):
        weights += query + key_value + hidden
    return weights


def _latent_attention(fields: Fields) -> int:
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    kv_rank, rope = fields.integer("kv_lora_rank"), fields.integer("qk_rope_head_dim")
    nope, value = fields.integer("qk_nope_head_dim"), fields.integer("v_head_dim")
    query_rank = fields.count("q_lora_rank")
    query = heads * (nope + rope)
    # with a query rank: down projection, its norm, up projection
    query_params = query_rank * (hidden + 1 + query) if query_rank else hidden * query
    latent = hidden * (kv_rank + rope) + kv_rank
    return query_params + latent + kv_rank * heads * (nope + value) + heads * value * hidden


def _dense_mlp(fields: Fields) -> int:
    hidden, width = fields.integer("hidden_size"), fields.integer("intermediate_size")
    bias = 2 * width + hidden if fields.flag("mlp_bias") else 0
    return 3 * hidden * width + bias
