"""An engine without a model: its tokens are hashes of all tokens before them, and of the draw.

Everything around it is the real thing: plan, batcher, pages, journal, unfinished answers, outputs.
"""

import json
import os
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from blendrun.data.detokenizer import Detokenizer
from blendrun.data.model_files import ModelFiles, resolve_model
from blendrun.engine import assembly, attempt, execute
from blendrun.engine.decoder_config import DecoderConfig
from blendrun.engine.loaded_model import LoadedModel
from blendrun.engine.noise import uniforms
from blendrun.engine.step_result import StepResult
from blendrun.engine.tensor_group import ALONE
from blendrun.schedule.batch import Batch
from tiny_models import write_tokenizer

_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "tie_word_embeddings": True,
}


def make_model(folder: Path) -> Path:
    """A model folder without weights."""
    tokenizer = write_tokenizer(folder)
    config = {**_CONFIG, "vocab_size": tokenizer.get_vocab_size()}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


class _Backend:
    """Takes the place of TorchBackend."""

    def __init__(
        self, decoder: Any, _attention: Any, requests: Any, *others: Any, **_: Any
    ) -> None:
        generations, _scores, _guides, cache = others
        self._vocab_size = decoder.config.vocab_size
        self._requests, self._generations, self._cache = requests, generations, cache

    def run(self, batch: Batch) -> StepResult:
        self._cache.take_writes()
        request = batch.request[batch.needs_logits]
        end = (batch.start + batch.num_tokens)[batch.needs_logits]
        columns = self._requests
        draw = uniforms(
            columns.seed[request], columns.draw_key[request], columns.sample[request], end
        )
        draw[columns.temperature[request] == 0] = 0
        tokens = [
            self._token(*one) for one in zip(request.tolist(), end.tolist(), draw, strict=True)
        ]
        return StepResult(np.array(tokens, np.int32), np.zeros(len(tokens), bool), 0.0, 0.0, 0.0)

    def _token(self, request: int, end: int, draw: np.float64) -> int:
        before = self._generations.tokens(request, 0, end).tobytes() + draw.tobytes()
        number = int.from_bytes(blake2b(before, digest_size=8).digest(), "little")
        return 2 if number % 19 == 0 else number % self._vocab_size


def install(watch: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> None:
    """The engine of this process is the fake one from now on.

    `watch` takes the names and functions of the stages that are worth a kill, and wraps them.
    """
    attempt.find_model = execute.find_model = lambda plan, _: resolve_model(
        plan.model.spec, weights=False
    )
    attempt.LoadedModel = SimpleNamespace(load=_load)
    assembly.TorchBackend = _Backend
    os.fsync = lambda _: None  # a killed process loses nothing that it wrote
    execute.renumber = watch("renumber", execute.renumber)
    execute.write_outputs = watch("outputs", execute.write_outputs)


def _load(files: ModelFiles, _settings: Any) -> LoadedModel:
    config = DecoderConfig.from_hf(files.config)
    attention = SimpleNamespace(backend="none", backend_reason=lambda: "a fake engine")
    cpu = torch.device("cpu")
    compute = SimpleNamespace(
        device=cpu,
        attention=attention,
        kernels={},
        lanes=None,
        capture=None,
        why_no_graphs="a fake engine",
    )
    decoder = SimpleNamespace(config=config, row_block=None, group=ALONE, device=cpu)
    detokenizer = Detokenizer.from_folder(files.folder)
    return LoadedModel(files, decoder, compute, detokenizer, None)
