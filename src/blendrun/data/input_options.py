"""How inputs are read, beyond the names of their columns."""

from dataclasses import dataclass
from typing import Literal

InputFormat = Literal["auto", "openai", "columns"]
Truncate = Literal["left", "right"]
BadUnicode = Literal["error", "replace"]


@dataclass(frozen=True, slots=True)
class InputOptions:
    """What a person can choose; defaults stand in `schedule.settings` too."""

    format: InputFormat = "auto"  # auto: lines that look like OpenAI batch requests are
    template: str | None = None  # makes the prompt from columns
    strict: bool = False  # the first row that cannot run is refused, and with it the job
    truncate: Truncate | None = None  # the end that a prompt too long for the context loses
    bad_unicode: BadUnicode = "error"  # what half of a surrogate pair does to its row
    model: str | None = None  # name of the job's model, to tell from that of a batch request
