"""Greedy answers of transformers in float32, one request at a time, and how near a tie was.

The checkpoint is the folder that blendrun reads too; tokenizer, chat template, decoder and
generation are transformers' own.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging

from blendrun.data.model_files import ModelFiles

TIE = 1e-4  # logits that differ by less may come in either order


@dataclass(frozen=True, slots=True)
class Difference:
    """Two answers to one prompt that are not equal."""

    position: int  # first output token that differs
    gap: float | None  # at it, best logit minus the lower of the two; None: one answer is cut
    worst_gap: float  # over the answer under test, best logit minus that of its token

    @property
    def is_tie(self) -> bool:
        """Both answers are greedy ones, up to the order of logits that are as good as equal."""
        return self.gap is not None and self.gap < TIE and self.worst_gap < TIE


class Reference:
    """A model in float32, and a file that keeps its answers, where one is given."""

    def __init__(self, files: ModelFiles, cache: Path | None, threads: int | None = None) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self._eos = list(files.eos_token_ids)
        self._weights = files.weights_fingerprint()
        self._tokenizer = AutoTokenizer.from_pretrained(files.folder)
        self._model = AutoModelForCausalLM.from_pretrained(files.folder, dtype=torch.float32)
        self._model.eval()
        self._model.generation_config = GenerationConfig()  # no sampling defaults of the model
        self._cache = cache
        self._known = {} if cache is None else _read_cache(cache)

    def prompt_tokens(self, row: dict[str, Any]) -> list[int]:
        """Token ids of an input row, by transformers' tokenizer and chat template."""
        if row.get("prompt_token_ids") is not None:
            return list(row["prompt_token_ids"])
        if row.get("prompt") is not None:
            return list(self._tokenizer(row["prompt"])["input_ids"])
        rendered = self._tokenizer.apply_chat_template(
            row["messages"], add_generation_prompt=True, return_dict=False
        )
        return list(rendered)

    def generate(self, prompt: list[int], max_tokens: int) -> list[int]:
        """The greedy answer, its end-of-sequence token included; kept in the cache file."""
        key = hashlib.sha256(
            json.dumps([self._weights, self._eos, max_tokens, prompt]).encode()
        ).hexdigest()
        if key not in self._known:
            self._known[key] = self._generate(prompt, max_tokens)
            if self._cache is not None:
                with self._cache.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([key, self._known[key]]) + "\n")
        return self._known[key]

    @torch.inference_mode()
    def compare(self, prompt: list[int], tested: list[int], other: list[int]) -> Difference:
        """How the answer `tested` differs from `other`, which is not equal to it."""
        logits = self._model(
            torch.tensor([prompt + tested[:-1]]), logits_to_keep=len(tested)
        ).logits[0]
        best = logits.max(dim=-1).values
        worst_gap = float((best - logits[range(len(tested)), tested]).max())
        shared = zip(tested, other, strict=False)
        position = next((i for i, (a, b) in enumerate(shared) if a != b), None)
        if position is None:
            return Difference(min(len(tested), len(other)), None, worst_gap)
        pair = logits[position, [tested[position], other[position]]]
        return Difference(position, float(best[position] - pair.min()), worst_gap)

    @torch.inference_mode()
    def _generate(self, prompt: list[int], max_tokens: int) -> list[int]:
        config = GenerationConfig(
            do_sample=False,
            max_new_tokens=max_tokens,
            eos_token_id=self._eos or None,
            pad_token_id=self._eos[0] if self._eos else 0,
        )
        ids = torch.tensor([prompt])
        out = self._model.generate(
            ids, attention_mask=torch.ones_like(ids), generation_config=config
        )
        answer: list[int] = out[0, len(prompt) :].tolist()
        return answer


def _read_cache(path: Path) -> dict[str, list[int]]:
    if not path.is_file():
        return {}
    return dict(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
