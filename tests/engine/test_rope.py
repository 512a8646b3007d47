import pytest
import torch

from blendrun.data.model_support import rope_settings
from blendrun.engine.rope import cos_sin, inverse_frequencies
from blendrun.kernels.cpu.rotary_reference import rotated as rotate
from blendrun.kernels.cpu.rotation import Rotation
from tiny_models import LLAMA3_ROPE, YARN_ROPE

VARIANTS = {
    "default": {"rope_type": "default", "rope_theta": 500000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "llama3": LLAMA3_ROPE,
    "yarn": YARN_ROPE,
    "yarn, all keys": {
        **YARN_ROPE,
        "beta_fast": 16,
        "beta_slow": 2,
        "mscale": 0.7,
        "mscale_all_dim": 1.3,
        "truncate": False,
    },
    "yarn, own factor": {**YARN_ROPE, "attention_factor": 1.25},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_frequencies_equal_those_of_transformers(name):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        max_position_embeddings=256,
        rope_parameters=dict(VARIANTS[name]),
    )
    theirs = LlamaRotaryEmbedding(config)
    rope = rope_settings({"max_position_embeddings": 256, "rope_parameters": VARIANTS[name]})
    frequencies, factor = inverse_frequencies(rope, 64, 256)
    torch.testing.assert_close(frequencies, theirs.inv_freq, rtol=2e-6, atol=0)
    assert factor == pytest.approx(theirs.attention_scaling, rel=1e-12)


def test_rotation_keeps_lengths_and_depends_on_distance_only():
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 1, 16, generator=generator, dtype=torch.float64)
    frequencies, factor = inverse_frequencies(
        {"rope_type": "default", "rope_theta": 100.0}, 16, 128
    )

    def rotated(x, position):
        angles = cos_sin(torch.tensor([position]), frequencies, factor)
        return rotate(x, Rotation(*angles, None, None, 0.0), None)

    near = (rotated(q, 7) * rotated(k, 3)).sum()
    far = (rotated(q, 107) * rotated(k, 103)).sum()
    torch.testing.assert_close(near, far, rtol=1e-5, atol=1e-5)
    assert (near - (rotated(q, 7) * rotated(k, 4)).sum()).abs() > 1e-2
    torch.testing.assert_close(rotated(q, 90).norm(), q.norm())
    torch.testing.assert_close(rotated(q, 0), q)
