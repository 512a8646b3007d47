"""One bf16 checkpoint for all engines, so that none rounds the weights in its own way."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def write_bf16(folder: Path, target: Path) -> Path:
    """A copy of the checkpoint with its floating-point weights in bf16; returns `target`."""
    target.mkdir(parents=True)
    for path in folder.iterdir():
        if path.suffix == ".safetensors":
            weights = {
                name: tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
                for name, tensor in load_file(path).items()
            }
            save_file(weights, target / path.name, metadata={"format": "pt"})
        elif path.is_file():
            shutil.copy(path, target)
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    config.pop("torch_dtype", None)
    config["dtype"] = "bfloat16"
    (target / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return target
