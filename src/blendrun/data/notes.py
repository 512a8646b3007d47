"""What is worth telling about rows that run all the same: how many, with an example."""

from collections.abc import Iterator
from typing import Literal

from blendrun.units import count_of

NoteKind = Literal["mended", "truncated", "other_model", "repeated_id", "no_id"]

_TEXTS: dict[NoteKind, str] = {
    "mended": "with half of a surrogate pair, read as U+FFFD",
    "truncated": "cut to the context",
    "other_model": "whose body names another model, such as {example}: the job's model answers",
    "repeated_id": "with an id that an earlier row has, such as {example}",
    "no_id": "without an id",
}


class Notes:
    """Counts by kind, each with the first example."""

    def __init__(self) -> None:
        self._found: dict[NoteKind, tuple[int, str]] = {}

    def add(self, kind: NoteKind, example: str = "", count: int = 1) -> None:
        before, first = self._found.get(kind, (0, example))
        if before + count:
            self._found[kind] = (before + count, first)

    def merge(self, other: "Notes") -> None:
        """Adds those of later rows."""
        for kind, (count, example) in other._found.items():
            self.add(kind, example, count)

    def texts(self) -> Iterator[str]:
        for kind, (count, example) in self._found.items():
            yield f"{count_of(count, 'row')} {_TEXTS[kind].format(example=repr(example))}"
