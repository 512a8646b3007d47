"""What the script of every peer shares: it loads once, then runs the job whenever it is asked to.

A script runs in an environment of its own, so this is the standard library alone. On stdout it
says one JSON line when it has loaded, and one for each line that it reads from stdin, after it
has run the whole job; all that an engine prints goes to stderr. By hand:

    echo | PYTHON vllm_offline.py JOB.json --model CHECKPOINT_FOLDER --kv-gib 4
"""

import argparse
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Job:
    """Token ids of prompts, in the order in which the engine gets them; end-of-sequence counts
    like any other token, so `max_tokens[i]` tokens follow `prompts[i]`."""

    prompts: list[list[int]]
    max_tokens: list[int]

    @property
    def max_len(self) -> int:
        """Tokens of the longest request."""
        return max(len(p) + n for p, n in zip(self.prompts, self.max_tokens, strict=True))


@dataclass(frozen=True, slots=True)
class Answers:
    """Output tokens by request, and the prompt tokens that were computed for them (not taken from
    a cache), where the engine says so."""

    tokens: list[list[int]]
    computed_prompt_tokens: int | None = None


class Engine(Protocol):
    """A loaded peer."""

    version: str

    def reset(self) -> None:
        """Forget all cached prompts; not timed."""

    def generate(self, job: Job) -> Answers:
        """Run a job to its end; timed."""


class MissingError(Exception):
    """The peer is not installed; the message says what is missing."""


def require(module: str) -> None:
    """Raises MissingError where this Python has no such module."""
    if importlib.util.find_spec(module) is None:
        raise MissingError(f"{sys.executable} has no {module}")


def serve(load: Callable[[argparse.Namespace, Job], Engine], **settings: int) -> None:
    """Run a peer's script; each of `settings` becomes an option with that default."""
    options = _parse(settings)
    said = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the engine prints is not a result
    read = json.loads(options.job.read_text(encoding="utf-8"))
    job = Job(read["prompts"], read["max_tokens"])
    begin = time.perf_counter()
    try:
        engine = load(options, job)
    except MissingError as error:
        print(json.dumps({"missing": str(error)}), file=said, flush=True)
        return
    engine.generate(Job([[1, 2, 3, 4]], [4]))  # warm up
    loaded = {"version": engine.version, "load_s": time.perf_counter() - begin}
    print(json.dumps(loaded), file=said, flush=True)
    for _ in sys.stdin:
        print(json.dumps(_run(engine, job)), file=said, flush=True)


def _run(engine: Engine, job: Job) -> dict[str, object]:
    engine.reset()
    begin = time.perf_counter()
    answers = engine.generate(job)
    elapsed_s = time.perf_counter() - begin
    return {
        "generate_s": elapsed_s,
        "output_tokens": sum(map(len, answers.tokens)),
        "computed_prompt_tokens": answers.computed_prompt_tokens,
        "answers": answers.tokens,
    }


def _parse(settings: dict[str, int]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("job", type=Path)
    parser.add_argument("--model", type=Path, required=True, help="folder with a bf16 checkpoint")
    parser.add_argument("--kv-gib", type=int, default=4, help="memory for KV pages")
    for name, default in settings.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    return parser.parse_args()


def kv_tokens(options: argparse.Namespace, bytes_per_value: int = 2) -> int:
    """Tokens whose keys and values fit into the memory for KV pages."""
    config = json.loads((options.model / "config.json").read_text(encoding="utf-8"))
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    kv_heads = config.get("num_key_value_heads") or heads
    per_token = 2 * config["num_hidden_layers"] * kv_heads * head_dim * bytes_per_value
    return int((options.kv_gib << 30) // per_token)
