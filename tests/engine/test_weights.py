import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from blendrun.cost.tensor_shards import Shard
from blendrun.data.model_files import resolve_model
from blendrun.engine.decoder_config import DecoderConfig
from blendrun.engine.weights import load_weights, random_weights
from blendrun.errors import InputError
from tiny_models import make_checkpoint

EXPERTS = {
    "MixtralForCausalLM": {"num_local_experts": 3, "num_experts_per_tok": 2},
    "Qwen3MoeForCausalLM": {
        "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 40
    },
}  # fmt: skip
NAMES = {
    "MixtralForCausalLM": ("block_sparse_moe", "w1", "w3", "w2"),
    "Qwen3MoeForCausalLM": ("mlp", "gate_proj", "up_proj", "down_proj"),
}


@pytest.fixture
def folder(tmp_path):
    return make_checkpoint(tmp_path, attention_bias=True)


def load(folder, dtype=torch.float32):
    return load_weights(folder, DecoderConfig.from_hf(resolve_model(str(folder)).config), dtype)


def rewrite(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_projections_are_fused_in_the_order_q_k_v_and_gate_up(folder):
    raw = load_file(folder / "model.safetensors")
    layer = load(folder).layers[1]
    for fused, kind in ((layer.qkv, "weight"), (layer.qkv_bias, "bias")):
        parts = [raw[f"model.layers.1.self_attn.{letter}_proj.{kind}"] for letter in "qkv"]
        assert torch.equal(fused, torch.cat(parts))
    parts = [raw[f"model.layers.1.mlp.{name}_proj.weight"] for name in ("gate", "up")]
    assert torch.equal(layer.mlp.gate_up, torch.cat(parts))
    assert layer.mlp.gate_up_bias is None
    assert layer.q_norm is None


def test_random_weights_have_the_usual_size_and_are_the_same_every_time(folder):
    config = DecoderConfig.from_hf(resolve_model(str(folder)).config)
    weights, again = (random_weights(config, torch.float32) for _ in range(2))
    layer, other = weights.layers
    assert torch.equal(layer.mlp.gate_up, again.layers[0].mlp.gate_up)
    assert not torch.equal(layer.mlp.gate_up, other.mlp.gate_up)
    for matrix in (weights.embedding, weights.head, layer.qkv, layer.out, layer.mlp.down):
        assert float(matrix.std()) == pytest.approx(0.02, rel=0.05)
        assert float(matrix.mean()) == pytest.approx(0, abs=1e-3)
    assert layer.post_norm.tolist() == [1.0] * 64
    assert layer.qkv_bias.tolist() == [0.0] * 128


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", *EXPERTS])
def test_random_weights_of_ranks_are_parts_of_the_whole(tmp_path, architecture):
    folder = make_checkpoint(tmp_path, architecture, **EXPERTS.get(architecture, {}))
    config = DecoderConfig.from_hf(resolve_model(str(folder)).config)
    whole = random_weights(config, torch.bfloat16)
    parts = [random_weights(config, torch.bfloat16, shard=Shard(rank, 2)) for rank in range(2)]
    assert torch.equal(whole.head, torch.cat([part.head for part in parts]))
    downs = [part.layers[1].mlp.down for part in parts]
    assert torch.equal(whole.layers[1].mlp.down, torch.cat(downs, dim=-1))


def test_a_tied_head_is_the_embedding_itself(tmp_path):
    weights = load(make_checkpoint(tmp_path, tie_word_embeddings=True))
    assert weights.head is weights.embedding


def test_weights_are_cast(folder):
    weights = load(folder, torch.bfloat16)
    raw = load_file(folder / "model.safetensors")
    assert weights.layers[0].mlp.down.dtype == torch.bfloat16
    assert torch.equal(weights.head, raw["lm_head.weight"].bfloat16())


def test_sharded_checkpoints_are_read_by_their_index(folder):
    single = load(folder)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    weight_map = {}
    for index, part in enumerate((names[::2], names[1::2])):
        file = f"model-{index}.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    # A second copy in another layout, as some repositories have, is not in the index.
    save_file({"norm": torch.ones(2)}, folder / "consolidated.safetensors")
    index = {"weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    sharded = load(folder)
    assert torch.equal(sharded.layers[1].qkv, single.layers[1].qkv)
    assert torch.equal(sharded.head, single.head)


@pytest.mark.parametrize("architecture", EXPERTS)
def test_experts_are_read_in_the_spelling_of_their_family(tmp_path, architecture):
    folder = make_checkpoint(tmp_path, architecture, **EXPERTS[architecture])
    raw, mlp = load_file(folder / "model.safetensors"), load(folder).layers[1].mlp
    block, gate, up, down = NAMES[architecture]
    prefix = f"model.layers.1.{block}"
    assert torch.equal(mlp.router, raw[f"{prefix}.gate.weight"])
    for expert in range(3):
        names = [f"{prefix}.experts.{expert}.{name}.weight" for name in (gate, up, down)]
        assert torch.equal(mlp.gate_up[expert], torch.cat([raw[name] for name in names[:2]]))
        assert torch.equal(mlp.down[expert], raw[names[2]])


def stack_experts(folder, architecture):
    """The checkpoint as transformers 5 holds it in memory: one tensor for all experts."""
    raw = load_file(folder / "model.safetensors")
    block, gate, up, down = NAMES[architecture]
    stacked = {name: tensor for name, tensor in raw.items() if f".{block}." not in name}
    for layer in range(2):
        prefix = f"model.layers.{layer}"
        old, new = f"{prefix}.{block}", f"{prefix}.mlp"
        stacked[f"{new}.gate.weight"] = raw[f"{old}.gate.weight"]
        each = [[raw[f"{old}.experts.{e}.{n}.weight"] for n in (gate, up, down)] for e in range(3)]
        stacked[f"{new}.experts.gate_up_proj"] = torch.stack([torch.cat(e[:2]) for e in each])
        stacked[f"{new}.experts.down_proj"] = torch.stack([e[2] for e in each])
    save_file(stacked, folder / "model.safetensors")


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("architecture", EXPERTS)
def test_stacked_experts_are_those_of_a_tensor_each_on_every_rank(tmp_path, architecture, size):
    folder = make_checkpoint(tmp_path, architecture, **EXPERTS[architecture])
    config = DecoderConfig.from_hf(resolve_model(str(folder)).config)
    shards = [Shard(rank, size) for rank in range(size)]
    each = [load_weights(folder, config, torch.float32, shard=shard) for shard in shards]
    stack_experts(folder, architecture)
    for one, shard in zip(each, shards, strict=True):
        other = load_weights(folder, config, torch.float32, shard=shard)
        for a, b in zip(one.layers, other.layers, strict=True):
            assert torch.equal(a.mlp.router, b.mlp.router)
            assert torch.equal(a.mlp.gate_up, b.mlp.gate_up)
            assert torch.equal(a.mlp.down, b.mlp.down)


def test_a_missing_expert_is_named(tmp_path):
    folder = make_checkpoint(tmp_path, "MixtralForCausalLM", **EXPERTS["MixtralForCausalLM"])
    name = "model.layers.0.block_sparse_moe.experts.2.w3.weight"
    rewrite(folder, lambda tensors: tensors.pop(name))
    with pytest.raises(InputError, match=r"lacks tensors: .*experts\.2\.w3"):
        load(folder)


def test_missing_tensors_are_named(folder):
    rewrite(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(InputError, match=r"lacks tensors: model\.layers\.1\.mlp\.up_proj\.weight"):
        load(folder)


def test_unexpected_tensors_are_named(folder):
    rewrite(folder, lambda tensors: tensors.update({"model.layers.0.extra.weight": torch.ones(1)}))
    with pytest.raises(InputError, match=r"unexpected tensors: model\.layers\.0\.extra\.weight"):
        load(folder)


def test_stored_rope_frequencies_are_not_unexpected(folder):
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    rewrite(folder, lambda tensors: tensors.update({name: torch.ones(8)}))
    assert len(load(folder).layers) == 2


def test_a_wrong_shape_is_refused(folder):
    rewrite(folder, lambda tensors: tensors.update({"model.norm.weight": torch.ones(63)}))
    with pytest.raises(InputError, match=r"model\.norm\.weight .* \[63\], .* \[64\]"):
        load(folder)


def test_integer_weights_are_refused(folder):
    ones = torch.ones(64, dtype=torch.int8)
    rewrite(folder, lambda tensors: tensors.update({"model.norm.weight": ones}))
    with pytest.raises(InputError, match="quantised"):
        load(folder)


def test_a_broken_file_is_an_input_error(folder):
    (folder / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    with pytest.raises(InputError, match="cannot read weights"):
        load(folder)
