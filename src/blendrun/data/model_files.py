"""`--model` as one kind of thing: a checkpoint folder with a config and a tokenizer.

A Hugging Face id is downloaded, a `.gguf` file converted (`data.gguf`), a folder used in place.
Knows files, not tensors: whether the weights fit the config is the engine's to find out.
"""

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from blendrun.data.gguf import convert_gguf
from blendrun.data.gguf_tokenizer import token_text
from blendrun.data.hub import download
from blendrun.data.model_sizes import PlannedSizes, planned_sizes
from blendrun.data.model_support import check_files, check_generates, check_supported
from blendrun.errors import InputError

_FINGERPRINTED = ("config.json", "generation_config.json", "tokenizer.json",
                  "tokenizer_config.json", "special_tokens_map.json",
                  "chat_template.jinja")  # fmt: skip


Engine = Literal["native", "vllm"]  # what is to compute


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A checkpoint on this machine that the engine in question may run.

    `fingerprint` covers config and tokenizer files only, so that it is the same before and after
    the weights arrive; `weights_fingerprint` covers names and sizes of the weight files.
    """

    spec: str
    folder: Path
    config: dict[str, Any]  # for vLLM one of the same sizes, of a family that can be priced
    fingerprint: str
    eos_token_ids: tuple[int, ...]
    max_position: int
    notes: tuple[str, ...] = ()  # on what `config` takes for granted

    def weights_fingerprint(self) -> str:
        digest = hashlib.sha256()
        for path in sorted(self.folder.glob("*.safetensors")):
            digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        return digest.hexdigest()[:16]


def resolve_model(
    spec: str, cache_dir: Path | None = None, weights: bool = True, engine: Engine = "native"
) -> ModelFiles:
    """The checkpoint that `spec` names: a Hugging Face id, a folder, or a `.gguf` file.

    Without `weights`, config and tokenizer files are enough and nothing large is read. vLLM as the
    `engine` runs more kinds of models than the native one.

    Raises:
        InputError: nothing is found, or the model is of a kind that blendrun refuses.
    """
    folder = _find_folder(spec, cache_dir or default_cache_dir(), weights, engine)
    check_files(folder, weights)
    config = read_json(folder / "config.json")
    sizes = _checked(config, folder, engine)
    return ModelFiles(
        spec=spec,
        folder=folder,
        config=sizes.config,
        fingerprint=_fingerprint(folder),
        eos_token_ids=_eos_token_ids(folder, config),
        max_position=int(sizes.config["max_position_embeddings"]),
        notes=sizes.notes,
    )


def default_cache_dir() -> Path:
    """`$BLENDRUN_CACHE_DIR`, else `~/.cache/blendrun`."""
    return Path(os.environ.get("BLENDRUN_CACHE_DIR") or Path.home() / ".cache" / "blendrun")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, empty where the file is missing.

    Raises:
        InputError: the file is not a JSON object.
    """
    if not path.is_file():
        return {}
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(table, dict):
        raise InputError(f"{path} does not hold a JSON object")
    return table


def _checked(config: dict[str, Any], folder: Path, engine: Engine) -> PlannedSizes:
    """The config as `engine` and prices go by it. Raises InputError where it cannot run."""
    if engine == "vllm":
        check_generates(config, folder)
        return planned_sizes(config)
    try:
        check_supported(config, folder)
    except InputError as refusal:
        try:
            _checked(config, folder, "vllm")
        except InputError:
            raise refusal from None
        hints = filter(None, (refusal.hint, "with --engine vllm: whatever vLLM runs"))
        raise InputError(refusal.message, "; ".join(hints)) from None
    return PlannedSizes(config, ())


def _find_folder(spec: str, cache_dir: Path, weights: bool, engine: Engine) -> Path:
    path = Path(spec).expanduser()
    if spec and path.is_dir():
        return path.resolve()
    if path.is_file():
        if path.suffix == ".gguf":
            return convert_gguf(path, cache_dir, weights)
        raise InputError(
            f"{spec} is not a model", "give a checkpoint folder, a .gguf file or a Hugging Face id"
        )
    if path.suffix == ".gguf" or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", spec) or spec[0] in ".~":
        raise InputError(
            f"there is no model at {spec!r}",
            "give a checkpoint folder, a .gguf file or a Hugging Face id (owner/name)",
        )
    if not weights:
        return download(spec, weights=False)
    small = download(spec, weights=False)
    check_files(small, weights=False)
    _checked(read_json(small / "config.json"), small, engine)
    return download(spec, weights=True)


def _fingerprint(folder: Path) -> str:
    digest = hashlib.sha256()
    for name in _FINGERPRINTED:
        path = folder / name
        if path.is_file():
            digest.update(f"{name} {path.stat().st_size}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _eos_token_ids(folder: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """Every token that ends an answer, by generation config, config and tokenizer; sorted."""
    found: set[int] = set()
    text = config.get("text_config")  # of a multimodal model
    text = text if isinstance(text, dict) else {}
    for table in (read_json(folder / "generation_config.json"), config, text):
        value = table.get("eos_token_id")
        found.update(value if isinstance(value, list) else [] if value is None else [value])
    token = token_text(read_json(folder / "tokenizer_config.json").get("eos_token"))
    token_id = None if token is None else _token_id(folder, token)
    return tuple(sorted(found if token_id is None else found | {token_id}))


def _token_id(folder: Path, token: str) -> int | None:
    table = read_json(folder / "tokenizer.json")
    for added in table.get("added_tokens", ()):
        if added["content"] == token:
            return int(added["id"])
    vocab = table.get("model", {}).get("vocab", {})
    return int(vocab[token]) if isinstance(vocab, dict) and token in vocab else None
