"""Where the outputs of a run lie: one file, or a folder of parts.

Knows names, not what is in the files.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

_FILE, _FOLDER = "outputs.parquet", "outputs"
OUTPUT_NAMES = (_FILE, _FOLDER)


@dataclass(frozen=True, slots=True)
class OutputFiles:
    run_dir: Path
    part_bytes: int | None  # a part that has so many bytes is the end of it; None: one file

    @property
    def path(self) -> Path:
        return self.run_dir / (_FILE if self.part_bytes is None else _FOLDER)

    def drop_others(self) -> None:
        """Removes what an earlier call wrote in the other shape."""
        remove(self.run_dir / (_FOLDER if self.part_bytes is None else _FILE))


def part_name(number: int, suffix: str) -> str:
    return f"part-{number:05d}{suffix}"


def parts_of(outputs: Path) -> list[Path]:
    """The Parquet files of outputs, in the order of their rows."""
    if outputs.is_file():
        return [outputs]
    return sorted(outputs.glob("part-*.parquet"), key=lambda path: int(path.stem[5:]))


def remove(path: Path) -> None:
    """A file or a folder, where it exists."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
