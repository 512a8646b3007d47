"""Hugging Face `config.json` and `generation_config.json` out of GGUF metadata.

Knows llama.cpp's key names for the Llama family; reads no weights except the small `rope_freqs`.
"""

from typing import Any

import numpy as np

from blendrun.errors import InputError

ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
}


def read_metadata(reader: Any) -> dict[str, Any]:
    """All key-value pairs of a `gguf.GGUFReader` as plain Python values."""
    return {
        key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")
    }


def hf_config(metadata: dict[str, Any], reader: Any) -> dict[str, Any]:
    """The `config.json` that describes the same model.

    Raises:
        InputError: an architecture, a rope or a file layout that is not supported.
    """
    architecture = supported_architecture(metadata)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    if "token_embd.weight" not in tensors:
        raise InputError("the GGUF file has no token_embd.weight: it holds no language model")

    def value(name: str, default: Any = None) -> Any:
        found = metadata.get(f"{architecture}.{name}", default)
        if found is None:
            raise InputError(f"the GGUF file lacks {architecture}.{name}")
        return found

    num_heads = value("attention.head_count")
    num_kv_heads = value("attention.head_count_kv", num_heads)
    if not isinstance(num_heads, int) or not isinstance(num_kv_heads, int):
        raise InputError("the GGUF file has another number of heads in each layer: not supported")
    hidden_size = value("embedding_length")
    head_dim = value("attention.key_length", hidden_size // num_heads)
    if value("rope.dimension_count", head_dim) != head_dim:
        raise InputError("the GGUF file rotates only part of each head (partial rotary)")
    name, model_type = ARCHITECTURES[architecture]
    config = {
        "architectures": [name],
        "model_type": model_type,
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "intermediate_size": value("feed_forward_length"),
        "num_hidden_layers": value("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "vocab_size": int(tensors["token_embd.weight"].shape[1]),
        "max_position_embeddings": value("context_length"),
        "rms_norm_eps": _shortest(value("attention.layer_norm_rms_epsilon")),
        "tie_word_embeddings": "output.weight" not in tensors,
        "dtype": "float32",
        "rope_parameters": _rope(metadata, architecture, tensors, head_dim),
    }
    if architecture in ("llama", "qwen3"):
        config["attention_bias"] = "blk.0.attn_q.bias" in tensors
    if architecture == "llama":
        config["mlp_bias"] = "blk.0.ffn_gate.bias" in tensors
    return config | _token_ids(metadata)


def generation_config(metadata: dict[str, Any]) -> dict[str, Any]:
    """`generation_config.json`: which tokens end an answer (end of text, turn, message)."""
    ids = [metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
    unique = list(dict.fromkeys(token_id for token_id in ids if token_id is not None))
    return _token_ids(metadata) | ({"eos_token_id": unique} if unique else {})


def supported_architecture(metadata: dict[str, Any]) -> str:
    """The llama.cpp name of the architecture.

    Raises:
        InputError: it is not supported, a mixture of experts, or one part of a split file.
    """
    architecture = metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise InputError(
            f"GGUF architecture {architecture!r} is not supported",
            f"supported: {', '.join(sorted(ARCHITECTURES))} (Mistral files say llama)",
        )
    if metadata.get("general.type", "model") != "model":
        raise InputError(f"the GGUF file holds a {metadata['general.type']}, not a model")
    if metadata.get(f"{architecture}.expert_count", 0):
        raise InputError("GGUF files with a mixture of experts are not supported")
    if metadata.get("split.count", 0) > 1:
        raise InputError("the GGUF file is one part of several", "merge them with llama-gguf-split")
    return str(architecture)


def _token_ids(metadata: dict[str, Any]) -> dict[str, int]:
    names = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}
    found = {hf: metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind, hf in names.items()}
    return {key: token_id for key, token_id in found.items() if token_id is not None}


def _shortest(value: float) -> float:
    """The shortest decimal that is the same float32: 1e-05 for 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _rope(
    metadata: dict[str, Any], architecture: str, tensors: dict[str, Any], head_dim: int
) -> dict[str, Any]:
    theta = _shortest(metadata.get(f"{architecture}.rope.freq_base", 10000.0))
    kind = metadata.get(f"{architecture}.rope.scaling.type", "none")
    scaling = f"{architecture}.rope.scaling"
    factor = _shortest(metadata.get(f"{scaling}.factor", 1.0))
    if "rope_freqs.weight" in tensors:
        return _llama3_rope(theta, head_dim, np.asarray(tensors["rope_freqs.weight"].data))
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return {"rope_type": "default", "rope_theta": theta}
    if kind == "linear":
        return {"rope_type": "linear", "rope_theta": theta, "factor": factor}
    if kind == "yarn":
        original = metadata.get(f"{scaling}.original_context_length")
        if original is None:
            raise InputError(f"the GGUF file uses yarn and lacks {scaling}.original_context_length")
        yarn = {"rope_type": "yarn", "rope_theta": theta, "factor": factor}
        return yarn | {"original_max_position_embeddings": original}
    raise InputError(f"rope scaling {kind!r} of the GGUF file is not supported")


def _llama3_rope(theta: float, head_dim: int, factors: np.ndarray) -> dict[str, Any]:
    """Llama-3's scaling parameters, recovered from the divisors that llama.cpp stored."""
    rope = {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": _shortest(factors.max()),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    if not np.allclose(_llama3_divisors(rope, head_dim), factors, rtol=1e-3):
        raise InputError("the rope_freqs of the GGUF file are not those of Llama-3 scaling")
    return rope


def _llama3_divisors(rope: dict[str, Any], head_dim: int) -> np.ndarray:
    wavelen = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, head_dim, 2) / head_dim)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    original = rope["original_max_position_embeddings"]
    smooth = np.clip((original / wavelen - low) / (high - low), 0.0, 1.0)
    divisors: np.ndarray = 1.0 / ((1.0 - smooth) / rope["factor"] + smooth)
    return divisors
