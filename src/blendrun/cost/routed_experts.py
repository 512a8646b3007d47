"""Which layers of a mixture-of-experts model have routed experts, how many and how wide.

Knows the families' keys for it; planning covers more of them than the engine.
"""

from dataclasses import dataclass

from blendrun.cost.hf_config import LATENT_TYPES, Fields


@dataclass(frozen=True, slots=True)
class RoutedExperts:
    num_experts: int  # of a layer
    per_token: int  # experts that a token visits
    intermediate_size: int  # of one expert
    layers: tuple[int, ...]  # that have experts, ascending; the others have one MLP


DENSE = RoutedExperts(0, 0, 0, ())


def routed_experts(fields: Fields) -> RoutedExperts:
    """The experts of the model that `fields` describes; `DENSE` where it has none.

    Raises:
        InputError: a field of an expert model is missing.
    """
    num_layers = fields.integer("num_hidden_layers")
    if fields.model_type == "mixtral":
        return RoutedExperts(
            _num_experts(fields, "num_local_experts"),
            fields.integer("num_experts_per_tok"),
            fields.integer("intermediate_size"),
            tuple(range(num_layers)),
        )
    if fields.model_type == "qwen3_moe":
        key, first, every = "num_experts", 0, fields.integer("decoder_sparse_step", 1)
    elif fields.model_type in LATENT_TYPES and _count(fields, "n_routed_experts"):
        key, first = "n_routed_experts", fields.count("first_k_dense_replace")
        every = fields.integer("moe_layer_freq", 1)
    else:
        return DENSE
    dense = set(fields.table.get("mlp_only_layers") or ())
    offset = 1 if key == "num_experts" else 0  # Qwen counts its sparse layers from one
    return RoutedExperts(
        _num_experts(fields, key),
        fields.integer("num_experts_per_tok"),
        fields.integer("moe_intermediate_size"),
        tuple(i for i in range(first, num_layers) if i not in dense and (i + offset) % every == 0),
    )


def _num_experts(fields: Fields, key: str) -> int:
    return _count(fields, key) or fields.integer(key)  # raises: an expert model


def _count(fields: Fields, key: str) -> int:
    """Experts under the family's own key, or under the one that transformers 5 writes."""
    return fields.count(key) or fields.count("num_local_experts")
