import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from blendrun.data.model_files import resolve_model
from blendrun.engine.decoder_config import DecoderConfig
from blendrun.engine.weights import load_weights
from blendrun.errors import InputError
from tiny_models import make_checkpoint


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
