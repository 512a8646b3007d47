from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from blendrun.data.model_files import resolve_model
from blendrun.engine.decoder import Decoder
from blendrun.engine.decoder_config import DecoderConfig
from blendrun.engine.products import is_panels
from blendrun.engine.weight_packing import pack_weights
from blendrun.engine.weights import load_weights
from blendrun.kernels.cpu import linear
from blendrun.kernels.cpu.rotary_reference import rotated
from tiny_models import LLAMA3_ROPE, YARN_ROPE, make_checkpoint

QWEN3_MOE = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48}
MODELS = {
    "llama": ("LlamaForCausalLM", {}),
    "llama tied, one kv head": (
        "LlamaForCausalLM",
        {"tie_word_embeddings": True, "num_key_value_heads": 1},
    ),
    "llama3 rope, all biases": (
        "LlamaForCausalLM",
        {"attention_bias": True, "mlp_bias": True, "rope_parameters": LLAMA3_ROPE},
    ),
    "llama linear rope": (
        "LlamaForCausalLM",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}},
    ),
    "llama yarn rope": ("LlamaForCausalLM", {"rope_parameters": YARN_ROPE}),
    "mistral, wide heads": ("MistralForCausalLM", {"head_dim": 32}),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen2 tied": ("Qwen2ForCausalLM", {"tie_word_embeddings": True, "rms_norm_eps": 1e-3}),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 24}),
    "qwen3 tied, biases": (
        "Qwen3ForCausalLM",
        {"head_dim": 16, "tie_word_embeddings": True, "attention_bias": True},
    ),
    "mixtral": ("MixtralForCausalLM", {"num_local_experts": 6, "num_experts_per_tok": 2}),
    "mixtral, wide heads, tied": (
        "MixtralForCausalLM",
        {"num_local_experts": 3, "head_dim": 32, "tie_word_embeddings": True},
    ),
    "qwen3-moe": ("Qwen3MoeForCausalLM", QWEN3_MOE),
    "qwen3-moe, shares of one, biases": (
        "Qwen3MoeForCausalLM",
        {**QWEN3_MOE, "norm_topk_prob": True, "attention_bias": True},
    ),
    "qwen3-moe, every second layer": (
        "Qwen3MoeForCausalLM",
        {**QWEN3_MOE, "num_hidden_layers": 5, "decoder_sparse_step": 2, "mlp_only_layers": [1]},
    ),
}


def dense_attend(lengths):
    """Causal attention of sequences of `lengths` that lie one after another."""

    def attend(_layer, q, k, v, rotation):
        q, k = rotated(q, rotation, rotation.q_norm), rotated(k, rotation, rotation.k_norm)
        groups = q.shape[1] // k.shape[1]
        outputs = []
        for part_q, part_k, part_v in zip(
            q.split(lengths), k.split(lengths), v.split(lengths), strict=True
        ):
            keys, values = (
                x.repeat_interleave(groups, dim=1).transpose(0, 1) for x in (part_k, part_v)
            )
            out = F.scaled_dot_product_attention(
                part_q.transpose(0, 1), keys, values, is_causal=True
            )
            outputs.append(out.transpose(0, 1))
        return torch.cat(outputs)

    return attend


def load_decoder(folder: Path, dtype=torch.float32) -> Decoder:
    config = DecoderConfig.from_hf(resolve_model(str(folder)).config)
    return Decoder(config, load_weights(folder, config, dtype))


def positions_of(lengths):
    return torch.cat([torch.arange(length) for length in lengths])


def reference_logits(folder: Path, sequences) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        return torch.cat([model(sequence[None]).logits[0] for sequence in sequences])


def random_sequences(lengths, vocab_size):
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, vocab_size, (length,), generator=generator) for length in lengths]


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_transformers(name, tmp_path):
    architecture, overrides = MODELS[name]
    folder = make_checkpoint(tmp_path, architecture, **overrides)
    decoder = load_decoder(folder)
    lengths = [90, 1, 17]
    sequences = random_sequences(lengths, decoder.config.vocab_size)
    with torch.inference_mode():
        hidden = decoder.forward(torch.cat(sequences), positions_of(lengths), dense_attend(lengths))
        logits = decoder.logits(hidden)
    expected = reference_logits(folder, sequences)
    scale = float(expected.abs().max())
    assert logits.dtype == torch.float32
    assert expected.std() > 0.1
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5 * scale)


@pytest.mark.skipif(not linear.is_fast(), reason="products are oneDNN's on this CPU")
@pytest.mark.parametrize("biases", [False, True])
def test_weights_in_panels_give_the_logits_of_transformers(biases, tmp_path):
    folder = make_checkpoint(
        tmp_path, hidden_size=64, intermediate_size=128, attention_bias=biases, mlp_bias=biases
    )
    plain = load_decoder(folder, torch.bfloat16)
    packed = Decoder(plain.config, pack_weights(load_decoder(folder, torch.bfloat16).weights))
    layer = packed.weights.layers[0]
    assert all(map(is_panels, (layer.qkv, layer.out, layer.mlp.gate_up, layer.mlp.down)))
    lengths = [90, 1, 17]
    sequences = random_sequences(lengths, plain.config.vocab_size)
    expected = reference_logits(folder, sequences)

    def error(decoder: Decoder) -> float:
        with torch.inference_mode():
            hidden = decoder.forward(
                torch.cat(sequences), positions_of(lengths), dense_attend(lengths)
            )
            return float((decoder.logits(hidden).float() - expected).abs().max())

    assert error(packed) < 1.2 * error(plain) < 0.1 * float(expected.abs().max())


def test_rows_select_the_tokens_that_need_logits(tmp_path):
    decoder = load_decoder(make_checkpoint(tmp_path))
    lengths = [9, 4]
    token_ids = torch.cat(random_sequences(lengths, decoder.config.vocab_size))
    rows = torch.tensor([12, 8, 3])
    with torch.inference_mode():
        every = decoder.forward(token_ids, positions_of(lengths), dense_attend(lengths))
        some = decoder.forward(token_ids, positions_of(lengths), dense_attend(lengths), rows)
        none = decoder.forward(
            token_ids, positions_of(lengths), dense_attend(lengths), torch.tensor([], dtype=int)
        )
    torch.testing.assert_close(some, every[rows], rtol=0, atol=1e-5)
    assert decoder.logits(none).shape == (0, decoder.config.vocab_size)


def test_attend_gets_queries_and_keys_of_every_layer(tmp_path):
    decoder = load_decoder(make_checkpoint(tmp_path, "Qwen3ForCausalLM", head_dim=24))
    seen = []

    def attend(layer, q, k, v, rotation):
        seen.append((layer, tuple(q.shape), tuple(k.shape), tuple(v.shape)))
        assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
        assert rotation.q_norm is decoder.weights.layers[layer].q_norm
        return dense_attend([5])(layer, q, k, v, rotation)

    with torch.inference_mode():
        decoder.forward(torch.arange(5), torch.arange(5), attend)
    assert seen == [(layer, (5, 4, 24), (5, 2, 24), (5, 2, 24)) for layer in range(2)]


def test_bfloat16_stays_near_float32(tmp_path):
    folder = make_checkpoint(tmp_path)
    token_ids = random_sequences([20], 300)[0]
    logits = []
    for dtype in (torch.float32, torch.bfloat16):
        decoder = load_decoder(folder, dtype)
        with torch.inference_mode():
            hidden = decoder.forward(token_ids, positions_of([20]), dense_attend([20]))
            logits.append(decoder.logits(hidden))
    assert hidden.dtype == torch.bfloat16
    assert logits[1].dtype == torch.bfloat16
    error = (logits[0] - logits[1]).abs().mean() / logits[0].std()
    assert 0 < error < 0.03


def test_config_reads_both_spellings_of_rope(tmp_path):
    folder = make_checkpoint(tmp_path, rope_parameters=LLAMA3_ROPE)
    config = resolve_model(str(folder)).config
    old = {k: v for k, v in config.items() if k != "rope_parameters"}
    old["rope_theta"] = LLAMA3_ROPE["rope_theta"]
    scaling = {k: v for k, v in LLAMA3_ROPE.items() if k not in ("rope_theta", "rope_type")}
    old["rope_scaling"] = {**scaling, "type": "llama3"}
    assert DecoderConfig.from_hf(old) == DecoderConfig.from_hf(config)


def test_config_reads_both_spellings_of_experts(tmp_path):
    folder = make_checkpoint(tmp_path, "Qwen3MoeForCausalLM", **QWEN3_MOE)
    config = resolve_model(str(folder)).config
    sizes = {k: v for k, v in config.items() if k not in ("num_experts", "num_local_experts")}
    made = [
        DecoderConfig.from_hf({**sizes, key: 8}) for key in ("num_experts", "num_local_experts")
    ]
    assert made[0] == made[1] == DecoderConfig.from_hf(config)
    assert made[0].experts.num_experts == 8
    assert made[0].experts.layers == (0, 1)
