"""Where a model marks its reasoning: what an answer holds before the end mark is no answer yet.

Knows marks and texts. A model has marks where its own chat template names them.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from blendrun.data.chat_template import ChatTemplate

_MARKS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>"))


class Parts(NamedTuple):
    """Of an answer, without marks and the line breaks around them."""

    reasoning: str  # empty: there is none
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    begin: str
    end: str

    @classmethod
    def from_folder(cls, folder: Path) -> "ReasoningMarks | None":
        """Those of a checkpoint folder; a template may leave the first mark to the model."""
        sources = ChatTemplate.from_folder(folder).sources
        for begin, end in _MARKS:
            if any(end in source for source in sources):
                return cls(begin, end)
        return None

    def is_open(self, prompt: str) -> bool:
        """Whether an answer to `prompt`, or to what ends like it, begins inside of reasoning."""
        return prompt.rstrip().endswith(self.begin)

    def split(self, answer: str, is_open: bool) -> Parts:
        """Reasoning that is cut off has no text after it."""
        begun = answer.lstrip().removeprefix(self.begin)
        begins = len(begun) < len(answer.lstrip())
        if not (begins or is_open):
            return Parts("", answer)
        reasoning, _, text = (begun if begins else answer).partition(self.end)
        return Parts(reasoning.strip("\n"), text.lstrip("\n"))
