"""Configs of families that only vLLM runs, as sizes that can be priced."""

from typing import Any

import pytest

from blendrun.cost.model_shape import ModelShape
from blendrun.data.model_sizes import planned_sizes
from blendrun.data.weight_bits import weight_bits
from blendrun.errors import InputError

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 300,
    "max_position_embeddings": 4096,
}
OTHER = {**LLAMA, "architectures": ["PhiForCausalLM"], "model_type": "phi3"}
QWEN_MOE = {**OTHER, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
# layers, hidden, heads, KV heads, head width, MLP width, vocabulary, positions
SAME = (2, 64, 4, 2, 16, 96, 300, 4096)
CONFIGS = {
    "phi3": ({**OTHER, "partial_rotary_factor": 0.5}, SAME),
    "gpt2": (
        {"model_type": "gpt2", "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 1024,
         "n_inner": None, "vocab_size": 300},
        (3, 64, 4, 4, 16, 256, 300, 1024),
    ),
    "gpt_neox": (
        {"model_type": "gpt_neox", "hidden_size": 64, "num_hidden_layers": 3,
         "num_attention_heads": 4, "intermediate_size": 200, "max_position_embeddings": 512,
         "vocab_size": 300},
        (3, 64, 4, 4, 16, 200, 300, 512),
    ),
    "falcon, one KV head": (
        {"model_type": "falcon", "hidden_size": 64, "num_hidden_layers": 2, "multi_query": True,
         "num_attention_heads": 4, "num_kv_heads": 4, "vocab_size": 300},
        (2, 64, 4, 1, 16, 256, 300, 2048),
    ),
    "falcon, new decoder": (
        {"model_type": "falcon", "hidden_size": 64, "num_hidden_layers": 2, "multi_query": True,
         "new_decoder_architecture": True, "num_attention_heads": 8, "num_kv_heads": 2,
         "ffn_hidden_size": 100, "vocab_size": 300},
        (2, 64, 8, 2, 8, 100, 300, 2048),
    ),
    "mpt": (
        {"model_type": "mpt", "d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 900,
         "expansion_ratio": 3, "vocab_size": 300, "attn_config": {"kv_n_heads": 2}},
        (2, 64, 4, 2, 16, 192, 300, 900),
    ),
    "chatglm": (
        {"model_type": "chatglm", "hidden_size": 64, "num_layers": 2, "num_attention_heads": 4,
         "multi_query_attention": True, "multi_query_group_num": 2, "kv_channels": 24,
         "ffn_hidden_size": 96, "padded_vocab_size": 300, "seq_length": 777},
        (2, 64, 4, 2, 24, 96, 300, 777),
    ),
    "opt": ({**OTHER, "ffn_dim": 128, "intermediate_size": None}, (*SAME[:5], 128, *SAME[6:])),
    "layers that differ": (
        {**OTHER, "intermediate_size": [90, 101]}, (*SAME[:5], 96, *SAME[6:]),
    ),
    "multimodal": (
        {"architectures": ["XForConditionalGeneration"], "model_type": "x", "vision_config": {},
         "hidden_size": 9, "vocab_size": 300,
         "text_config": {k: v for k, v in OTHER.items() if k != "vocab_size"}},
        SAME,
    ),
    "multimodal in two layers": ({"thinker_config": {"text_config": OTHER}}, SAME),
}  # fmt: skip


def shape_of(config: dict[str, Any]) -> ModelShape:
    return ModelShape.from_hf_config(planned_sizes(config).config, "tiny")


@pytest.mark.parametrize("name", CONFIGS)
def test_sizes_are_read_under_whatever_name(name: str):
    config, sizes = CONFIGS[name]
    shape = shape_of(config)
    assert sizes == (
        shape.num_layers, shape.hidden_size, shape.num_heads, shape.num_kv_heads, shape.head_dim,
        shape.intermediate_size, shape.vocab_size, shape.max_position,
    )  # fmt: skip


def test_layers_of_an_unknown_family_are_taken_for_llamas_and_it_is_said():
    planned = planned_sizes(OTHER)
    shape = ModelShape.from_hf_config(planned.config, "tiny")
    assert shape == ModelShape.from_hf_config(LLAMA, "tiny")
    (note,) = planned.notes
    assert note == (
        "the estimate is for Llama-like layers of these sizes: those of phi3 are not known here"
    )


@pytest.mark.parametrize("own", [
    {},
    {"architectures": None, "model_type": "mistral"},
    {"architectures": ["Qwen2ForCausalLM"], "model_type": "their_own"},
    {"architectures": ["MixtralForCausalLM"], "num_local_experts": 4, "num_experts_per_tok": 2},
])  # fmt: skip
def test_a_known_family_is_priced_as_ever(own: dict[str, Any]):
    planned = planned_sizes({**LLAMA, **own})
    as_ever = ModelShape.from_hf_config({**LLAMA, **own}, "tiny")
    assert ModelShape.from_hf_config(planned.config, "tiny") == as_ever
    assert planned.notes == ()


def test_what_is_assumed_is_said():
    (note,) = planned_sizes(CONFIGS["falcon, one KV head"][0]).notes
    assert note.endswith(
        "; the config does not say, so assumed: contexts of 2,048 tokens, "
        "MLPs 4 times as wide as the hidden size"
    )


@pytest.mark.parametrize(("more", "experts"), [
    ({}, (8, 2, 2)),
    ({"first_k_dense_replace": 1}, (8, 2, 1)),
    ({"mlp_only_layers": [0]}, (8, 2, 1)),
    ({"decoder_sparse_step": 2}, (8, 2, 1)),
    ({"num_experts": 1}, (0, 0, 0)),
    ({"num_experts": None, "ffn_config": {"moe_num_experts": 6, "moe_top_k": 3},
      "num_experts_per_tok": None}, (6, 3, 2)),
])  # fmt: skip
def test_experts_are_read(more: dict[str, Any], experts: tuple[int, int, int]):
    shape = shape_of({**QWEN_MOE, **more})
    assert experts == (shape.num_experts, shape.experts_per_token, shape.num_expert_layers)
    if shape.num_experts:
        assert shape.expert_params == 3 * 64 * 32


@pytest.mark.parametrize("shared", [
    {"n_shared_experts": 2}, {"shared_expert_intermediate_size": 64}
])  # fmt: skip
def test_experts_that_every_token_visits_count(shared: dict[str, Any]):
    more = shape_of({**QWEN_MOE, **shared}).body_params - shape_of(QWEN_MOE).body_params
    assert more == 2 * 2 * 3 * 64 * 32  # layers × experts × their parameters


def test_a_latent_cache_is_told_by_its_fields():
    latent = {"kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    planned = planned_sizes({**OTHER, **latent})
    shape = ModelShape.from_hf_config(planned.config, "tiny")
    assert shape.latent_width == 24
    assert "DeepSeek-V2-like" in planned.notes[0]
    known = {**OTHER, **latent, "architectures": ["DeepseekV3ForCausalLM"]}
    known |= {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
    planned = planned_sizes(known)
    assert planned.notes == ()
    as_ever = ModelShape.from_hf_config(known, "tiny")
    assert ModelShape.from_hf_config(planned.config, "tiny") == as_ever


@pytest.mark.parametrize("more", [
    {"layer_types": ["linear_attention", "full_attention"]},
    {"layers_block_type": ["mamba", "attention"]},
    {"hybrid_override_pattern": "M-M*-"},
    {"attn_type_list": [0, 1]},
    {"full_attention_interval": 4},
])  # fmt: skip
def test_layers_that_keep_a_state_are_refused_by_name(more: dict[str, Any]):
    with pytest.raises(InputError, match="keep a state instead of K and V") as caught:
        planned_sizes({**OTHER, **more})
    key = next(iter(more))
    named = "linear_attention" if key == "layer_types" else key
    assert ("mamba" if key == "layers_block_type" else named) in caught.value.message


@pytest.mark.parametrize("more", [
    {"layer_types": ["sliding_attention", "full_attention"]},
    {"layer_types": ["attention", "attention"], "mamba_d_state": 128},  # Granite 4's dense ones
    {"attn_type_list": [1, 1]},
])  # fmt: skip
def test_layers_with_attention_only_are_planned(more: dict[str, Any]):
    assert shape_of({**OTHER, **more}).num_layers == 2


@pytest.mark.parametrize(
    "field", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"]
)
@pytest.mark.parametrize("config", [LLAMA, OTHER, {"text_config": OTHER, "vision_config": {}}])
def test_what_no_field_tells_is_refused_by_name(field: str, config: dict[str, Any]):
    config = {k: v for k, v in config.items() if k != field}
    if "text_config" in config:
        config["text_config"] = {**config["text_config"], field: None}
    with pytest.raises(InputError, match=f"config.json lacks {field}"):
        planned_sizes(config)


def test_experts_without_a_number_for_each_token_are_refused():
    with pytest.raises(InputError, match=r"config\.json lacks num_experts_per_tok"):
        planned_sizes({**QWEN_MOE, "num_experts_per_tok": None})


def test_windows_and_parts_that_see_are_said_to_be_left_out():
    config = {**OTHER, "sliding_window": 512, "vision_config": {}}
    said = " ".join(planned_sizes(config).notes)
    assert "windows of attention (512 tokens) as full" in said
    assert "text part" in said
    assert "windows" not in str(planned_sizes({**config, "use_sliding_window": False}).notes)


BITS = {
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 4 + 20 / 128),
    "gptq, a scale a row": ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8),
    "awq": ({"quant_method": "awq", "w_bit": 4, "group_size": 64}, 4 + 20 / 64),
    "bitsandbytes": ({"quant_method": "bitsandbytes", "_load_in_4bit": True}, 4),
    "bitsandbytes 8": (
        {"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": True}, 8,
    ),
    "fp8": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8),
    "modelopt": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4),
    "mxfp4": ({"quant_method": "mxfp4"}, 4.25),
    "compressed-tensors": (
        {"quant_method": "compressed-tensors", "config_groups": {
            "group_0": {"weights": {"num_bits": 4, "group_size": 128}},
            "group_1": {"weights": {"num_bits": 8, "group_size": None}}}},
        8 + 24 / 128,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BITS)
def test_bits_of_quantised_weights_are_read(name: str):
    quantised, bits = BITS[name]
    assert weight_bits(quantised) == (quantised["quant_method"], pytest.approx(bits))
    planned = planned_sizes({**LLAMA, "quantization_config": quantised})
    assert ModelShape.from_hf_config(planned.config).layer_weight_bits == pytest.approx(bits)
    assert quantised["quant_method"] in planned.notes[0]


def test_bits_are_also_found_in_the_text_part():
    config = {"text_config": {**OTHER, "quantization_config": BITS["gptq"][0]}}
    assert shape_of(config).layer_weight_bits == pytest.approx(BITS["gptq"][1])


@pytest.mark.parametrize("bits", [None, "many", 0, True, 99])
def test_unknown_bits_are_refused_by_field(bits: Any):
    with pytest.raises(InputError, match=r"'quantization_config'.*\(aqlm\).*bits"):
        weight_bits({"quant_method": "aqlm", "bits": bits})
