from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from blendrun.cost.tensor_shards import Shard
from blendrun.data.model_files import resolve_model
from blendrun.engine.decoder import Decoder
from blendrun.engine.decoder_config import DecoderConfig
from blendrun.engine.layer_calls import LayerCalls
from blendrun.engine.step_inputs import StepInputs
from blendrun.engine.step_runner import KvPages, StepRunner
from blendrun.engine.weight_packing import pack_weights
from blendrun.engine.weights import load_weights, random_weights
from blendrun.kernels.cpu import linear
from blendrun.kernels.cpu.attention import CpuAttention
from blendrun.kernels.cpu.calls import can_run
from tiny_executors import RandomOrder
from tiny_models import make_checkpoint, tiny_config

needs_kernels = pytest.mark.skipif(
    not (can_run() and linear.is_fast()), reason="no compiled kernels, or slow ones"
)
PAGE_SIZE = 16
WIDE = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3}  # whole panels
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "llama, one layer, tied": (
        "LlamaForCausalLM",
        {"num_hidden_layers": 1, "tie_word_embeddings": True},
    ),
    "llama, all biases": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen3, wide heads": ("Qwen3ForCausalLM", {"head_dim": 32}),
}


def step_of(new: list[int], before: list[int], drawn: list[int] | None = None) -> StepInputs:
    """`new` tokens of each sequence after `before` others; pages follow each other."""
    num_tokens = np.array(new, np.int32)
    context_len = num_tokens + np.array(before, np.int32)
    room = -(-64 // PAGE_SIZE)  # pages of a sequence
    table = np.arange(len(new) * room, dtype=np.int32).reshape(len(new), room)
    positions = np.concatenate(
        [np.arange(end - n, end) for n, end in zip(num_tokens, context_len, strict=True)]
    )
    sequence = np.repeat(np.arange(len(new)), num_tokens)
    last = np.cumsum(num_tokens, dtype=np.int32) - 1
    none = np.zeros(0, np.int32)
    total = int(num_tokens.sum())
    return StepInputs(
        slot=table[sequence, positions // PAGE_SIZE].astype(np.int64) * PAGE_SIZE
        + positions % PAGE_SIZE,
        memory_frac=np.zeros(0),
        token_idx=np.arange(total, dtype=np.int32),
        copy_from=none,
        copy_to=none,
        token_ids=np.random.default_rng(total).integers(0, 300, total).astype(np.int32),
        positions=positions.astype(np.int32),
        part_bounds=none,
        num_tokens=num_tokens,
        context_len=context_len.astype(np.int32),
        page_table=table,
        order=np.arange(len(new), dtype=np.int32),
        drawn=last if drawn is None else np.array(drawn, np.int32),
        whole=none,
        scored=none,
    )


STEPS = (
    step_of([20, 7, 1], [0, 0, 0]),
    step_of([1, 1, 1], [20, 7, 1]),
    step_of([1, 40, 1], [21, 8, 2], drawn=[0, 41]),  # more rows than before, few needed
    step_of([1, 2], [22, 48], drawn=[]),
)


@pytest.fixture(params=MODELS)
def decoder(request: pytest.FixtureRequest, tmp_path) -> Decoder:
    architecture, own = MODELS[request.param]
    folder = make_checkpoint(tmp_path, architecture, **{**WIDE, **own})
    config = DecoderConfig.from_hf(resolve_model(str(folder)).config)
    return Decoder(config, pack_weights(load_weights(folder, config, torch.bfloat16)))


def runner_of(decoder: Decoder) -> StepRunner:
    runner = StepRunner(decoder, CpuAttention(), KvPages(12, PAGE_SIZE, True, True))
    for cache in (runner._k_cache, runner._v_cache):
        cache.zero_()
    return runner


@needs_kernels
def test_layers_as_calls_are_those_of_the_operators_to_the_last_bit(decoder: Decoder):
    called, operated = runner_of(decoder), runner_of(decoder)
    assert called._calls is not None
    operated._calls = None
    threads = torch.get_num_threads()
    try:
        with torch.inference_mode():
            for number, step in enumerate(STEPS):
                torch.set_num_threads(1 + number % 2)
                (hidden, _), (expected, _) = called.forward(step), operated.forward(step)
                assert torch.equal(hidden, expected)
                assert len(hidden) == len(step.drawn)
                assert called.clock.seconds() > 0
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(called._k_cache, operated._k_cache)
    assert torch.equal(called._v_cache, operated._v_cache)
    assert called._k_cache.count_nonzero() > 0


@needs_kernels
def test_what_computes_otherwise_keeps_its_operators(decoder: Decoder):
    assert LayerCalls.fits(decoder, CpuAttention())
    assert not LayerCalls.fits(decoder, CpuAttention("torch"))
    own: Any
    for own in ({"executor": RandomOrder(0)}, {"group": SimpleNamespace(shard=Shard(0, 2))}):
        assert not LayerCalls.fits(Decoder(decoder.config, decoder.weights, **own), CpuAttention())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_experts_and_float32_keep_their_operators(dtype: torch.dtype):
    own = {"num_local_experts": 2, "num_experts_per_tok": 1} if dtype == torch.bfloat16 else {}
    architecture = "MixtralForCausalLM" if own else "LlamaForCausalLM"
    config = tiny_config(architecture, **WIDE, **own)
    device = torch.device("cpu")
    made = Decoder(config, pack_weights(random_weights(config, dtype, device)))
    assert not LayerCalls.fits(made, CpuAttention())
