"""Every family of models that runs, small: greedy answers are those of transformers."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from tiny_jobs import execute, plan_job
from tiny_models import make_checkpoint

LLAMA31_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
# what their config.json says beside sizes, and how many query heads share a KV head
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama-3.1-8B": (
        "LlamaForCausalLM",
        {"rope_parameters": LLAMA31_ROPE, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5},
    ),
    "Llama-3.1-70B": (
        "LlamaForCausalLM",
        {
            "rope_parameters": LLAMA31_ROPE,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "num_attention_heads": 8,
            "num_key_value_heads": 1,
        },
    ),
    "Qwen2.5-7B": (
        "Qwen2ForCausalLM",
        {
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
            "hidden_size": 112,
            "num_attention_heads": 14,
            "max_position_embeddings": 131072,
            "use_sliding_window": False,
            "sliding_window": 131072,
            "max_window_layers": 1,
        },
    ),
    "Qwen3-32B": (
        "Qwen3ForCausalLM",
        {
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
            "head_dim": 32,
            "max_position_embeddings": 40960,
        },
    ),
    "Mistral-7B-v0.3": (
        "MistralForCausalLM",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}, "head_dim": 16},
    ),
    "DeepSeek-LLM-67B": ("LlamaForCausalLM", {"num_attention_heads": 8, "num_key_value_heads": 1}),
    "Qwen3-30B-A3B": (
        "Qwen3MoeForCausalLM",
        {
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
            "num_experts": 16,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "head_dim": 32,
            "num_attention_heads": 8,
            "num_key_value_heads": 1,
        },
    ),
    "Mixtral-8x7B": (
        "MixtralForCausalLM",
        {
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
    ),
}
PROMPTS = [[5, *range(40, 60), 7 + i] for i in range(4)] + [[9], list(range(100, 190))]
MAX_TOKENS = 12


def outputs(run_dir: Path) -> list[list[int]]:
    table = pq.read_table(run_dir / "outputs.parquet")
    assert set(table["status"].to_pylist()) == {"ok"}
    return table["output_token_ids"].to_pylist()


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_answers_are_those_of_transformers(name: str, tmp_path: Path):
    from transformers import AutoModelForCausalLM

    architecture, overrides = FAMILIES[name]
    checkpoint = make_checkpoint(tmp_path / "model", architecture, **overrides)
    rows = [{"prompt_token_ids": prompt, "max_tokens": MAX_TOKENS} for prompt in PROMPTS]
    plan, _ = plan_job(tmp_path, rows, checkpoint)
    execute(plan, tmp_path / "run", page_size=4, chunk_size=33)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    for prompt, ours in zip(PROMPTS, outputs(tmp_path / "run"), strict=True):
        made = model.generate(
            torch.tensor([prompt]),
            max_new_tokens=MAX_TOKENS,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
        theirs = made.sequences[0, len(prompt) :].tolist()
        best = torch.stack(made.logits)[:, 0].topk(2).values
        close = (best[:, 0] - best[:, 1] < 1e-4).tolist()
        clear = close.index(True) if True in close else MAX_TOKENS
        assert ours[:clear] == theirs[:clear]


@pytest.mark.parametrize("name", ["Qwen3-30B-A3B", "Mixtral-8x7B"])
def test_experts_run_in_bfloat16_and_with_one_logit_for_all_batches(name: str, tmp_path: Path):
    architecture, overrides = FAMILIES[name]
    checkpoint = make_checkpoint(tmp_path / "model", architecture, **overrides)
    rows = [
        {"prompt_token_ids": prompt, "max_tokens": MAX_TOKENS, "logprobs": 0} for prompt in PROMPTS
    ]
    plan, _ = plan_job(tmp_path, rows, checkpoint)
    alone, _ = plan_job(tmp_path / "alone", rows[3:4], checkpoint)
    how = {"dtype": "bfloat16", "deterministic": True}
    execute(plan, tmp_path / "run", chunk_size=33, **how)
    execute(alone, tmp_path / "alone-run", **how)
    together, single = (
        pq.read_table(tmp_path / run / "outputs.parquet").to_pylist()
        for run in ("run", "alone-run")
    )
    assert together[3]["output_token_ids"] == single[0]["output_token_ids"]
    assert together[3]["output_logprobs"] == single[0]["output_logprobs"]
