"""GGUF files written from tiny checkpoints, the way llama.cpp's converter does."""

import json
from pathlib import Path
from typing import Any

import numpy as np

ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def interleave_halves(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """llama.cpp's row order of q and k: the two halves of each head alternate."""
    halves = weight.reshape(num_heads, 2, -1, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


def gguf_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if not stem.startswith("model.layers."):
        return f"{_NAMES[stem]}.{kind}"
    _, _, block, rest = stem.split(".", 3)
    return f"blk.{block}.{_NAMES[rest]}.{kind}"


def write_gguf(
    path: Path,
    checkpoint: Path,
    quantization: str = "F32",
    metadata: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray] | None = None,
) -> Path:
    """Writes `checkpoint` as a GGUF file, with `metadata` strings and `tensors` on top."""
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize
    from safetensors.numpy import load_file

    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    architecture = ARCHITECTURES[config["model_type"]]
    writer = GGUFWriter(path, architecture)
    _add_shape(writer, config)
    _add_tokenizer(writer, checkpoint)
    for key, value in (metadata or {}).items():
        writer.add_string(key, value)
    kind = GGMLQuantizationType[quantization]
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
    for name, array in load_file(checkpoint / "model.safetensors").items():
        letter = name.split("_proj")[0][-1]
        if architecture == "llama" and "self_attn" in name and letter in heads:
            array = interleave_halves(array, heads[letter])
        if array.ndim == 1 or kind is GGMLQuantizationType.F32:
            writer.add_tensor(gguf_name(name), array)
        else:
            writer.add_tensor(gguf_name(name), quantize(array, kind), raw_dtype=kind)
    for name, array in (tensors or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_shape(writer: Any, config: dict[str, Any]) -> None:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])


def _add_tokenizer(writer: Any, checkpoint: Path) -> None:
    table = json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))
    vocab = table["model"]["vocab"]
    special = {token["content"] for token in table["added_tokens"]}
    tokens = sorted(vocab, key=vocab.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in table["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    config = json.loads((checkpoint / "tokenizer_config.json").read_text(encoding="utf-8"))
    writer.add_chat_template(config["chat_template"])
