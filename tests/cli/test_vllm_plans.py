"""Plans of models that only vLLM runs, from the command line; vLLM is a fake."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from blendrun.data.manifest import read_manifest
from cli_words import Blendrun
from tiny_models import write_tokenizer
from tiny_vllm import fake_vllm

__all__ = ["fake_vllm"]
pytestmark = pytest.mark.usefixtures("fake_vllm")

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 320,
    "max_position_embeddings": 256,
    "eos_token_id": 2,
}
PHI3 = {**SIZES, "architectures": ["Phi3ForCausalLM"], "model_type": "phi3",
        "partial_rotary_factor": 0.5}  # fmt: skip
GPTQ = {**SIZES, "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}}  # fmt: skip
MULTIMODAL = {"architectures": ["XForConditionalGeneration"], "model_type": "x",
              "vision_config": {}, "vocab_size": 320,
              "text_config": {**SIZES, "model_type": "x_text"}}  # fmt: skip
MODELS = {
    "phi3": (PHI3, "Phi3ForCausalLM is not supported", "Llama-like layers of these sizes"),
    "gptq": (GPTQ, "quantised checkpoints (gptq)", "4.16 bits (gptq)"),
    "multimodal": (MULTIMODAL, "multimodal models are not supported", "text part of the model"),
}
PLAN = ("plan", "rows.jsonl", "-o", "plan.json", "--model", "model", "--hardware", "cpu")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The folder of a checkpoint of Phi-3's, without weights."""
    return write_model(tmp_path, PHI3)


def write_model(tmp_path: Path, config: dict[str, Any]) -> Path:
    folder = tmp_path / "model"
    write_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "model.safetensors").touch()
    return folder


def statuses(run_dir: Path) -> list[str]:
    column: list[str] = pq.read_table(run_dir / "outputs.parquet")["status"].to_pylist()
    return column


def engine_of(run_dir: Path) -> str:
    manifest = read_manifest(run_dir)
    assert manifest is not None
    return str(manifest.identity["engine"])


@pytest.mark.parametrize("name", MODELS)
def test_what_only_vllm_runs_is_planned_and_executed_for_it(
    name: str, tmp_path: Path, blendrun: Blendrun
):
    config, refusal, note = MODELS[name]
    write_model(tmp_path, config)
    refused = blendrun(*PLAN)
    assert refused.code == 2
    assert refusal in refused.err
    assert "with --engine vllm: whatever vLLM runs" in refused.err
    planned = blendrun(*PLAN, "--engine", "vllm")
    assert planned.code == 0, planned.err
    assert planned.out.count(note) == 1
    assert blendrun("execute", "plan.json", "--dtype", "float16").code == 0
    assert statuses(tmp_path / "plan.run") == ["ok", "ok"]
    assert engine_of(tmp_path / "plan.run") == "vllm"
    assert blendrun("simulate", "plan.json").code == 0
    assert "quick brown" in blendrun("inspect", "plan.json").out


def test_the_native_engine_refuses_such_a_plan_before_anything_else(
    model: Path, tmp_path: Path, blendrun: Blendrun
):
    assert blendrun(*PLAN, "--engine", "vllm").code == 0
    for name in ("tokenizer.json", "model.safetensors"):
        (model / name).unlink()  # nobody asks for these
    said = blendrun("execute", "plan.json", "--engine", "native")
    assert said.code == 2
    assert "Phi3ForCausalLM is not supported" in said.err
    assert "with --engine vllm" in said.err
    assert not (tmp_path / "plan.run").exists()


@pytest.mark.parametrize("where", ["flag", "job file"])
def test_run_plans_and_executes_on_vllm(
    where: str, model: Path, tmp_path: Path, blendrun: Blendrun
):
    (tmp_path / "job.toml").write_text('engine = "vllm"\n', encoding="utf-8")
    words = ("run", "rows.jsonl", "-o", "out", "--model", model)
    refused = blendrun(*words)
    assert refused.code == 2
    assert "with --engine vllm" in refused.err
    how = ("--engine", "vllm") if where == "flag" else ("--config", "job.toml")
    for _ in range(2):  # the second time it is complete
        assert blendrun(*words, *how).code == 0
    assert statuses(tmp_path / "out") == ["ok", "ok"]
    assert engine_of(tmp_path / "out") == "vllm"


@pytest.mark.parametrize(("planned", "executed"), [("native", "vllm"), ("vllm", "native")])
def test_a_supported_model_runs_on_either_whatever_it_was_planned_for(
    planned: str, executed: str, checkpoint: Path, tmp_path: Path, blendrun: Blendrun
):
    words = ("plan", "rows.jsonl", "--model", checkpoint, "--hardware", "cpu")
    said = blendrun(*words, "--engine", planned)
    assert said.code == 0
    assert "estimate is for" not in said.out
    assert blendrun("execute", "plan.json", "--engine", executed).code == 0
    assert engine_of(tmp_path / "plan.run") == executed
    again = blendrun("execute", "plan.json", "--run-dir", "again")
    assert again.code == 0
    assert engine_of(tmp_path / "again") == planned


def test_what_the_config_does_not_say_is_refused_by_name(tmp_path: Path, blendrun: Blendrun):
    config = {key: value for key, value in PHI3.items() if key != "hidden_size"}
    write_model(tmp_path, config)
    said = blendrun(*PLAN, "--engine", "vllm")
    assert said.code == 2
    assert "config.json lacks hidden_size" in said.err
    assert "n_embd" in said.err


def test_the_tokenizer_is_needed_as_ever(model: Path, blendrun: Blendrun):
    (model / "tokenizer.json").unlink()
    said = blendrun(*PLAN, "--engine", "vllm")
    assert said.code == 2
    assert "has no tokenizer.json" in said.err


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(("words", "message"), [
    (("--warmup", "--engine", "vllm"), "--warmup does not go with --engine vllm"),
    (("--engine", "sglang"), "engine"),
])  # fmt: skip
def test_engines_that_a_plan_cannot_have_are_refused(
    words: tuple[str, ...], message: str, tmp_path: Path, blendrun: Blendrun
):
    said = blendrun(*PLAN, *words)
    assert said.code == 2
    assert message in said.err
    assert not (tmp_path / "plan.json").exists()
