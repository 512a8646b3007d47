"""A hardware profile as a TOML file that `HardwareProfile.load` reads."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from blendrun.cost.hardware import HardwareProfile
from blendrun.data.disk import atomic_file, make_folder

_ASKED_AGAIN = ("reason", "sources")  # at each load, and below
_OF_THE_MOMENT = "memory_bytes"  # of a CPU: asked at each load


def write_profile(profile: HardwareProfile, path: Path, comment: str) -> None:
    """Write `profile`, without what is as the defaults have it. `comment` is one line."""
    defaults = {field.name: field.default for field in dataclasses.fields(profile)}
    left_out = {*_ASKED_AGAIN, *((_OF_THE_MOMENT,) if profile.kind == "cpu" else ())}
    lines = [f"# {comment}"]
    lines += [
        f"{key} = {_toml(value)}"
        for key, value in profile.to_table().items()
        if key not in left_out and value != defaults[key]
    ]
    lines += ["", "[sources]"]
    lines += [f"{key} = {_toml(value)}" for key, value in profile.sources.items()]
    make_folder(path.parent)
    with atomic_file(path) as file:
        file.write("\n".join([*lines, ""]).encode())


def _toml(value: Any) -> str:
    """Text, numbers, truth values and lists of them; JSON writes those as TOML does."""
    if isinstance(value, float):
        value = float(f"{value:.5g}")
    elif isinstance(value, tuple | list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, allow_nan=False, ensure_ascii=False)
