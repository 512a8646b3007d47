"""What a section has found so far, in a file that is whole at any time."""

import json
from pathlib import Path
from typing import Any


class Findings:
    """Figures by name; each `note` is on disk when it returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, Any] = {}

    def note(self, **figures: Any) -> None:
        self._found |= figures
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self._found, allow_nan=False), encoding="utf-8")
        new.replace(self._path)


def read_result(path: Path) -> dict[str, Any]:
    """Empty where the section found nothing."""
    if not path.is_file():
        return {}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
