import json
from pathlib import Path

import pytest

from blendrun.data import model_files
from blendrun.data.model_files import resolve_model
from blendrun.data.model_support import check_supported, rope_settings
from blendrun.errors import InputError
from tiny_models import make_checkpoint

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 300,
    "max_position_embeddings": 4096,
    "eos_token_id": 2,
}
MISTRAL = {**LLAMA, "architectures": ["MistralForCausalLM"]}
MIXTRAL = {**LLAMA, "architectures": ["MixtralForCausalLM"], "num_local_experts": 4,
           "num_experts_per_tok": 2}  # fmt: skip
QWEN3_MOE = {**LLAMA, "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4,
             "num_experts_per_tok": 2, "moe_intermediate_size": 32}  # fmt: skip
QWEN2 = {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True}
REFUSED = {
    "other architecture": (
        {**LLAMA, "architectures": ["GemmaForCausalLM"]},
        "GemmaForCausalLM is not supported",
    ),
    "no architecture": ({**LLAMA, "architectures": None}, "architecture None is not supported"),
    "quantised": ({**LLAMA, "quantization_config": {"quant_method": "awq"}}, r"quantised.*awq"),
    "own code": ({**LLAMA, "auto_map": {"AutoModel": "x.Y"}}, "trust_remote_code"),
    "vision": ({**LLAMA, "vision_config": {}}, "vision"),
    "multimodal class": (
        {**LLAMA, "architectures": ["LlavaForConditionalGeneration"]},
        "LlavaForConditionalGeneration",
    ),
    "encoder": ({**LLAMA, "architectures": ["BertForMaskedLM"]}, "BertForMaskedLM"),
    "embedding": ({**LLAMA, "architectures": ["Qwen2Model"]}, "Qwen2Model"),
    "classifier": (
        {**LLAMA, "architectures": ["LlamaForSequenceClassification"]},
        "LlamaForSequenceClassification",
    ),
    "activation": ({**LLAMA, "hidden_act": "gelu"}, "'gelu'"),
    "missing size": ({k: v for k, v in LLAMA.items() if k != "hidden_size"}, "hidden_size"),
    "dynamic rope": ({**LLAMA, "rope_scaling": {"type": "dynamic", "factor": 2}}, "'dynamic'"),
    "longrope": ({**LLAMA, "rope_parameters": {"rope_type": "longrope"}}, "'longrope'"),
    "incomplete rope": ({**LLAMA, "rope_scaling": {"rope_type": "llama3"}}, "low_freq_factor"),
    "partial rotary": ({**LLAMA, "partial_rotary_factor": 0.5}, "partial rotary"),
    "mistral window": ({**MISTRAL, "sliding_window": 1024}, r"sliding-window.*1024"),
    "mistral default window": ({**MISTRAL, "max_position_embeddings": 32768}, "4096 tokens"),
    "qwen window": ({**QWEN2, "sliding_window": 512, "max_window_layers": 1}, "512 tokens"),
    "mixtral window": ({**MIXTRAL, "sliding_window": 1024}, r"sliding-window.*1024"),
    "qwen3-moe window": (
        {**QWEN3_MOE, "use_sliding_window": True, "sliding_window": 64, "max_window_layers": 2},
        "64 tokens",
    ),
    "mixtral without experts": (
        {k: v for k, v in MIXTRAL.items() if k != "num_local_experts"},
        "num_local_experts",
    ),
    "more experts chosen than there are": ({**QWEN3_MOE, "num_experts_per_tok": 5}, "5 of 4"),
    "qwen window by layer": (
        {**QWEN2, "layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8},
        "8 tokens",
    ),
}
ACCEPTED = {
    "llama": LLAMA,
    "by model type": {**LLAMA, "architectures": None, "model_type": "llama"},
    "mistral without window": {**MISTRAL, "sliding_window": None, "max_position_embeddings": 9999},
    "mistral window as long as the context": MISTRAL,
    "qwen window beyond the last layer": {**QWEN2, "sliding_window": 8, "max_window_layers": 2},
    "mixtral": MIXTRAL,
    "qwen3-moe": {**QWEN3_MOE, "sliding_window": 64, "use_sliding_window": False},
    "qwen window off": {**QWEN2, "use_sliding_window": False, "sliding_window": 8},
    "linear rope": {**LLAMA, "rope_scaling": {"type": "linear", "factor": 2.0}},
}


def write_folder(folder, config, files=("model.safetensors",)):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for name in files:
        (folder / name).touch()
    return folder


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_models_are_refused_by_name(name, tmp_path):
    config, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        check_supported(config, tmp_path)


@pytest.mark.parametrize("name", ACCEPTED)
def test_supported_models_pass(name, tmp_path):
    files = resolve_model(str(write_folder(tmp_path, ACCEPTED[name])))
    assert files.config == ACCEPTED[name]


def test_the_refusal_of_an_architecture_lists_the_supported_ones(tmp_path):
    with pytest.raises(InputError) as caught:
        check_supported({**LLAMA, "architectures": ["PhiForCausalLM"]}, tmp_path)
    supported = (
        "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, "
        "MixtralForCausalLM, Qwen3MoeForCausalLM"
    )
    assert caught.value.hint == f"supported: {supported}"


ONLY_NATIVE_REFUSES = {
    "other architecture": "supported: LlamaForCausalLM",
    "quantised": "use the bf16 version, or a GGUF file",
    "own code": "",
    "vision": "supported: LlamaForCausalLM",
    "activation": "",
    "dynamic rope": "supported: default",
    "partial rotary": "",
    "qwen window": "use a model with full attention",
}


@pytest.mark.parametrize("name", ONLY_NATIVE_REFUSES)
def test_a_refusal_names_vllm_where_that_may_run_the_model(name, tmp_path):
    config = {**REFUSED[name][0]}
    if "quantization_config" in config:
        config["quantization_config"] = {"quant_method": "awq", "bits": 4}
    folder = str(write_folder(tmp_path, config))
    with pytest.raises(InputError, match=REFUSED[name][1]) as caught:
        resolve_model(folder)
    before, _, last = f"; {caught.value.hint}".rpartition("; ")
    assert last == "with --engine vllm: whatever vLLM runs"
    assert before.removeprefix("; ").startswith(ONLY_NATIVE_REFUSES[name])
    files = resolve_model(folder, engine="vllm")
    assert (files.max_position, files.eos_token_ids) == (4096, (2,))
    assert files.fingerprint


@pytest.mark.parametrize("engine", ["native", "vllm"])
@pytest.mark.parametrize(
    "name", ["encoder", "embedding", "classifier", "missing size", "mixtral without experts"]
)
def test_what_no_engine_generates_with_is_refused_for_each(name, engine, tmp_path):
    config, message = REFUSED[name]
    folder = str(write_folder(tmp_path, config))
    with pytest.raises(InputError, match=message) as caught:
        resolve_model(folder, engine=engine)
    assert "vllm" not in str(caught.value.hint)


@pytest.mark.parametrize("names", [
    ["T5ForConditionalGeneration"], ["Qwen2ForRewardModel"], ["BertModel"], ["JinaForRanking"],
])  # fmt: skip
def test_models_that_do_not_generate_are_refused_for_vllm(names, tmp_path):
    config = {**LLAMA, "architectures": names, "is_encoder_decoder": names[0].startswith("T5")}
    folder = str(write_folder(tmp_path, config))
    with pytest.raises(InputError, match=f"only causal language models.*{names[0]}"):
        resolve_model(folder, engine="vllm")


@pytest.mark.parametrize(
    "name", ["GPT2LMHeadModel", "ChatGLMModel", "MiniCPMV", "Phi4ForCausalLMV", "InternVLChatModel"]
)
def test_classes_with_other_names_generate_on_vllm(name, tmp_path):
    folder = str(write_folder(tmp_path, {**LLAMA, "architectures": [name], "model_type": "x"}))
    assert resolve_model(folder, engine="vllm").config["model_type"] == "llama"


def test_a_config_of_no_kind_is_refused_for_vllm(tmp_path):
    folder = str(write_folder(tmp_path, {**LLAMA, "architectures": None}))
    with pytest.raises(InputError, match=r"config\.json lacks architectures and model_type"):
        resolve_model(folder, engine="vllm")


def test_the_end_of_an_answer_is_also_found_in_the_text_part(tmp_path):
    config = {"model_type": "x", "text_config": {**LLAMA, "eos_token_id": [5, 4]}}
    folder = str(write_folder(tmp_path, config))
    assert resolve_model(folder, engine="vllm").eos_token_ids == (4, 5)


def test_sentence_embedding_models_are_refused(tmp_path):
    folder = write_folder(tmp_path, LLAMA, ["model.safetensors", "modules.json"])
    with pytest.raises(InputError, match="embedding"):
        resolve_model(str(folder))


def test_a_lora_adapter_is_refused(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="LoRA"):
        resolve_model(str(tmp_path), weights=False)


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model.pt"])
def test_pickled_weights_are_refused(tmp_path, name, weights):
    with pytest.raises(InputError, match=f"pickled weights only .{name}"):
        resolve_model(str(write_folder(tmp_path, LLAMA, [name])), weights=weights)


def test_pickled_weights_beside_safetensors_do_not_matter(tmp_path):
    folder = write_folder(tmp_path, LLAMA, ["pytorch_model.bin", "model.safetensors"])
    assert resolve_model(str(folder)).folder == folder


def test_planning_needs_no_weights(tmp_path):
    folder = write_folder(tmp_path, LLAMA, [])
    assert resolve_model(str(folder), weights=False).max_position == 4096
    with pytest.raises(InputError, match=r"no \*\.safetensors"):
        resolve_model(str(folder))


@pytest.mark.parametrize("spec", ["./missing", "/nowhere/at/all", "missing.gguf", "a/b/c", ""])
def test_a_path_to_nothing_is_not_looked_up_on_the_hub(spec, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="no model at"):
        resolve_model(spec)


def test_a_file_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "weights.bin"
    path.touch()
    with pytest.raises(InputError, match="is not a model"):
        resolve_model(str(path))


def test_broken_json_is_an_input_error(tmp_path):
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match=r"config\.json is not valid JSON"):
        resolve_model(str(tmp_path), weights=False)


def test_eos_is_the_union_of_generation_config_config_and_tokenizer(tmp_path):
    folder = make_checkpoint(tmp_path, eos_token_id=7)
    (folder / "generation_config.json").write_text('{"eos_token_id": [9, 7]}', encoding="utf-8")
    assert resolve_model(str(folder)).eos_token_ids == (2, 7, 9)


def test_the_fingerprint_follows_config_and_tokenizer_and_not_the_weights(tmp_path):
    folder = make_checkpoint(tmp_path)
    full = resolve_model(str(folder))
    weights = full.weights_fingerprint()
    (folder / "model.safetensors").unlink()
    plan = resolve_model(str(folder), weights=False)
    assert plan.fingerprint == full.fingerprint
    assert plan.weights_fingerprint() != weights
    tokenizer = folder / "tokenizer_config.json"
    tokenizer.write_text(tokenizer.read_text(encoding="utf-8") + " ", encoding="utf-8")
    assert resolve_model(str(folder), weights=False).fingerprint != full.fingerprint


def test_hub_models_are_checked_before_their_weights_are_downloaded(tmp_path, monkeypatch):
    folder = write_folder(tmp_path, {**LLAMA, "architectures": ["GemmaForCausalLM"]}, [])
    asked = []

    def download(model_id, weights):
        asked.append((model_id, weights))
        return folder

    monkeypatch.setattr(model_files, "download", download)
    with pytest.raises(InputError, match="GemmaForCausalLM"):
        resolve_model("owner/name")
    assert asked == [("owner/name", False)]
    write_folder(tmp_path, LLAMA)
    assert resolve_model("owner/name").spec == "owner/name"
    assert asked[1:] == [("owner/name", False), ("owner/name", True)]


def test_an_unreachable_hub_is_an_input_error_with_a_hint(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError, match="cannot download blendrun-tests/none") as caught:
        resolve_model("blendrun-tests/none")
    assert "local checkpoint folder" in caught.value.hint


def test_the_cache_folder_follows_the_environment(monkeypatch):
    monkeypatch.setenv("BLENDRUN_CACHE_DIR", "/somewhere")
    assert model_files.default_cache_dir() == Path("/somewhere")
    monkeypatch.delenv("BLENDRUN_CACHE_DIR")
    assert model_files.default_cache_dir() == Path.home() / ".cache" / "blendrun"


def test_rope_settings_take_the_old_and_the_new_spelling():
    old = {**LLAMA, "rope_theta": 5e5, "rope_scaling": {"type": "yarn", "factor": 4.0}}
    new = {
        **LLAMA,
        "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5e5},
    }
    assert rope_settings(old) == rope_settings(new)
    assert rope_settings(LLAMA)["rope_theta"] == 10000.0
