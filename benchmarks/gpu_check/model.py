"""A model of Llama-3.1-8B's shape without its weights, its tokenizer or a hub.

The job is made of token ids and its answers are ignored, so any tokenizer does: bytes, here.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from blendrun.engine.loaded_model import LoadedModel
from blendrun.engine.settings import ExecuteSettings
from gpu_check.device import open_device
from gpu_check.kernels import computes
from gpu_check.options import CheckOptions


def make_model(options: CheckOptions) -> Path:
    """Folder with a config and a tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder = options.work / "model"
    folder.mkdir(parents=True, exist_ok=True)
    config = json.dumps(options.model_config)
    (folder / "config.json").write_text(config, encoding="utf-8")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about), encoding="utf-8")
    return folder


def settings_of(options: CheckOptions, folder: Path) -> ExecuteSettings:
    """As the sections execute; overlap and policy are the job's business."""
    return ExecuteSettings(
        model=str(folder),
        load_format="dummy",
        dtype="float32" if options.dry_run else "bfloat16",
        attention=options.attention,
        ignore_eos=True,
        page_size=4 if options.dry_run else 16,
        chunk_size=32 if options.dry_run else 2048,
        max_seqs=options.max_seqs,
        flush_interval_s=1.0,
    )


def model_loader(options: CheckOptions) -> Callable[..., LoadedModel]:
    """A `ModelLoader` that loads once, on the best kernels there are, and keeps the model."""
    loaded: dict[str, LoadedModel] = {}

    def load(files: object, settings: ExecuteSettings) -> LoadedModel:
        if "model" not in loaded:
            # a dry run brings its own kernels; on a device the engine chooses, and checks them
            compute = None
            if options.dry_run:
                found, _ = computes(options, open_device(options).device)
                compute = next(iter(found.values()))
            loaded["model"] = LoadedModel.load(files, settings, compute=compute)
        return replace(loaded["model"], files=files)

    return load
