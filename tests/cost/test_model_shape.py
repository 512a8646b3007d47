import pytest

from blendrun.config import shipped_names
from blendrun.cost.cost_model import CostModel, Flavour
from blendrun.cost.hardware import HardwareProfile
from blendrun.cost.model_shape import ModelShape
from blendrun.errors import InputError

TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 100,
    "max_position_embeddings": 128,
}
LATENT = {
    **TINY,
    "model_type": "deepseek_v2",
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}
QWEN3_MOE = {
    **TINY,
    "model_type": "qwen3_moe",
    "head_dim": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "decoder_sparse_step": 2,
    "mlp_only_layers": [1],
}


def shape(**changes: object) -> ModelShape:
    return ModelShape.from_hf_config({**TINY, **changes}, "tiny")


@pytest.mark.parametrize(
    ("name", "total_params", "kv_bytes"),
    [
        ("llama-3.1-8b", 8_030_261_248, 131_072),
        ("llama-3.1-70b", 70_553_706_496, 327_680),
        ("qwen2.5-7b", 7_615_616_512, 57_344),
        ("smollm2-135m", 134_515_008, 23_040),
    ],
)
def test_shipped_shapes_have_the_published_sizes(name: str, total_params: int, kv_bytes: int):
    model = ModelShape.load(name)
    assert model.total_params == total_params
    assert model.kv_bytes_per_token() == kv_bytes


# name, parameters as their makers print them (billions), KV bytes: layers × 2 × heads × width × 2
PUBLISHED = [
    ("llama-3.1-8b", "8.03", 32 * 2 * 8 * 128 * 2),
    ("llama-3.1-70b", "70.6", 80 * 2 * 8 * 128 * 2),
    ("llama-3.1-405b", "405.9", 126 * 2 * 8 * 128 * 2),
    ("llama-2-7b", "6.74", 524_288),
    ("qwen2.5-7b", "7.62", 28 * 2 * 4 * 128 * 2),
    ("qwen2.5-72b", "72.7", 80 * 2 * 8 * 128 * 2),
    ("qwen3-32b", "32.8", 64 * 2 * 8 * 128 * 2),
    ("qwen3-30b-a3b", "30.5", 48 * 2 * 4 * 128 * 2),
    ("deepseek-llm-67b", "67.4", 95 * 2 * 8 * 128 * 2),
    ("deepseek-v3", "671", 61 * (512 + 64) * 2),
    ("mistral-7b-v0.3", "7.25", 32 * 2 * 8 * 128 * 2),
    ("mixtral-8x7b", "46.7", 32 * 2 * 8 * 128 * 2),
    ("smollm2-135m", "0.1345", 30 * 2 * 3 * 64 * 2),
]


@pytest.mark.parametrize(("name", "billions", "kv_bytes"), PUBLISHED)
def test_shipped_shapes_round_to_the_published_parameters(name: str, billions: str, kv_bytes: int):
    model = ModelShape.load(name)
    digits = len(billions.partition(".")[2])
    assert f"{model.total_params / 1e9:.{digits}f}" == billions
    assert model.kv_bytes_per_token() == kv_bytes


def test_every_shipped_shape_has_a_published_size_to_compare_with():
    assert sorted(name for name, _, _ in PUBLISHED) == shipped_names("models")


@pytest.mark.parametrize(
    ("name", "active"), [("qwen3-30b-a3b", 3.3e9), ("mixtral-8x7b", 12.9e9), ("deepseek-v3", 37e9)]
)
def test_active_parameters_are_the_published_ones(name: str, active: float):
    model = ModelShape.load(name)
    # their makers count both the embedding table and the head
    assert model.body_params + 2 * model.head_params == pytest.approx(active, rel=0.02)


def test_every_shipped_shape_loads_under_its_own_name():
    names = shipped_names("models")
    assert [ModelShape.load(name).name for name in names] == names


@pytest.mark.parametrize(
    ("config", "total_params"),
    # what transformers builds from the same configs
    [
        ({**TINY, "attention_bias": True, "mlp_bias": True, "head_dim": 24}, 200_384),
        ({**TINY, "model_type": "mistral"}, 167_104),
        ({**TINY, "model_type": "qwen2", "tie_word_embeddings": True}, 161_344),
        ({**TINY, "model_type": "qwen3", "head_dim": 32}, 228_864),
        (QWEN3_MOE, 284_672),
        (
            {**TINY, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2},
            814_784,
        ),
        (LATENT, 471_824),
        ({**LATENT, "q_lora_rank": 24}, 460_424),
    ],
)
def test_parameters_of_each_family_are_exact(config: dict[str, object], total_params: int):
    assert ModelShape.from_hf_config(config, "tiny").total_params == total_params


def test_the_architecture_decides_the_family_where_the_config_names_one():
    derived = shape(model_type="own_name", architectures=["Qwen2ForCausalLM"])
    assert derived == shape(model_type="qwen2")


def test_expert_count_is_read_under_the_key_that_transformers_5_writes():
    renamed = {k: v for k, v in QWEN3_MOE.items() if k != "num_experts"}
    renamed["num_local_experts"] = QWEN3_MOE["num_experts"]
    assert ModelShape.from_hf_config(renamed) == ModelShape.from_hf_config(QWEN3_MOE)


def test_a_token_passes_through_its_own_experts_only():
    model = ModelShape.from_hf_config(QWEN3_MOE, "tiny")
    assert model.num_expert_layers == 1  # layers 1 and 3 are sparse, and 1 is listed as dense
    unused = model.num_expert_layers * (8 - 2) * model.expert_params
    embedding = model.head_params
    assert model.body_params == model.total_params - embedding - model.head_params - unused


def test_head_counts_also_where_it_is_the_embedding_table():
    tied, untied = shape(tie_word_embeddings=True), shape()
    assert tied.head_params == untied.head_params == 100 * 64
    assert tied.body_params == untied.body_params
    assert untied.total_params - tied.total_params == 100 * 64


def test_query_width_is_apart_from_hidden_width():
    assert shape(head_dim=24).query_width == 96
    assert shape().query_width == 64


def test_repeated_kv_heads_do_not_shrink_with_tp():
    model = shape()
    per_head = 5 * 2 * 16 * 2  # layers × (K, V) × head_dim × bytes
    assert [model.kv_bytes_per_token(tp) for tp in (1, 2, 4)] == [2 * per_head, per_head, per_head]
    assert model.kv_bytes_per_token(1, element_bytes=4) == 2 * model.kv_bytes_per_token(1)


def test_latent_cache_lies_on_every_rank_in_full():
    model = ModelShape.from_hf_config(LATENT, "tiny")
    assert model.kv_bytes_per_token(1) == model.kv_bytes_per_token(4) == 5 * (16 + 8) * 2


@pytest.mark.parametrize(
    ("heads", "kv_heads", "sizes"),
    [
        (32, 8, (1, 2, 4, 8, 16, 32)),
        (28, 4, (1, 2, 4, 28)),
        (9, 3, (1, 3, 9)),
        (8, 1, (1, 2, 4, 8)),
    ],
)
def test_tp_sizes_divide_query_heads_and_divide_or_repeat_kv_heads(
    heads: int, kv_heads: int, sizes: tuple[int, ...]
):
    model = shape(num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=16)
    assert model.valid_tp_sizes() == sizes


def test_larger_steps_touch_more_experts_up_to_all():
    model = ModelShape.from_hf_config(QWEN3_MOE, "tiny")
    read = model.touched_params([1, 4, 10_000])
    assert read[0] == model.body_params + model.head_params
    assert read[0] < read[1] < read[2]
    assert read[2] == pytest.approx(model.total_params - model.head_params)  # embedding apart


def test_a_dense_step_reads_the_same_whatever_its_size():
    model = shape()
    assert model.touched_params([1, 500]).tolist() == [model.body_params + model.head_params] * 2


def test_quantised_layers_weigh_less_and_embedding_and_head_do_not():
    plain = ModelShape.from_hf_config(QWEN3_MOE, "tiny")
    four = ModelShape.from_hf_config({**QWEN3_MOE, "layer_weight_bits": 4}, "tiny")
    tables = 2 * plain.head_params  # embedding and head
    layers = plain.total_params - tables
    assert plain.weight_bytes() == 2 * plain.total_params
    assert four.weight_bytes() == layers // 2 + 2 * tables
    assert four.weight_bytes(4) == layers // 2 + 4 * tables
    assert plain.touched_bytes([1, 9]).tolist() == (2 * plain.touched_params([1, 9])).tolist()
    assert four.touched_bytes(1) == plain.body_params / 2 + 2 * plain.head_params


@pytest.mark.parametrize("flavour", ["product", "paper"])
def test_a_step_reads_quantised_weights_sooner(flavour: Flavour):
    hardware = HardwareProfile.load("a100-80gb-sxm")
    plain, four = (
        CostModel(shape(layer_weight_bits=bits), hardware, flavour=flavour) for bits in (None, 4)
    )
    assert four.weight_read_s < plain.weight_read_s
    assert four.kv_capacity_tokens > plain.kv_capacity_tokens
    assert four.kv_bytes_per_token == plain.kv_bytes_per_token


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_weight_bits": "4"}, "'layer_weight_bits' must be a number from 1 to 32"),
        ({"model_type": "gpt2"}, "model type 'gpt2' is not supported"),
        ({"hidden_size": None}, "has no 'hidden_size'"),
        ({"num_hidden_layers": 0}, "'num_hidden_layers' must be a whole number above 0"),
        ({"vocab_size": "many"}, "'vocab_size' must be a whole number above 0"),
        ({"model_type": "qwen3_moe", "moe_intermediate_size": 8, "num_experts_per_tok": 2},
         "has no 'num_experts'"),
    ],
)  # fmt: skip
def test_unusable_configs_are_refused_by_field(changes: dict[str, object], message: str):
    with pytest.raises(InputError, match=message):
        shape(**changes)


def test_shipped_file_is_found_by_its_repository_path_from_any_folder(
    tmp_path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert ModelShape.load("configs/models/llama-3.1-8b.toml").name == "llama-3.1-8b"


@pytest.mark.parametrize("spec", ["no-such-model", "elsewhere/llama-3.1-8b.toml"])
def test_unknown_shape_is_refused_with_the_shipped_names(spec: str):
    with pytest.raises(InputError, match="no model shape") as caught:
        ModelShape.load(spec)
    assert "llama-3.1-8b" in str(caught.value.hint)


def test_own_shape_file_is_read(tmp_path):
    lines = [f"{key} = {value!r}" for key, value in TINY.items()]
    path = tmp_path / "mine.toml"
    path.write_text("\n".join(['name = "mine"', 'source = "us"', "[config]", *lines]))
    assert ModelShape.load(str(path)) == ModelShape.from_hf_config(TINY, "mine")
