"""Which columns of an input file mean what, and which names the output needs for itself.

Knows names only; types and values are judged where they are read.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields
from typing import Any

from blendrun.data.answers import OUTPUT_COLUMNS
from blendrun.data.param_kinds import PARAM_KINDS
from blendrun.data.structures import STRUCTURE_COLUMNS
from blendrun.errors import InputError

_PROMPTS = ("prompt", "messages", "conversations", "token_ids")
_SETS = ("given", "in_template")
PARAM_COLUMNS = (
    *(name for name in PARAM_KINDS if name != "max_tokens"),
    *STRUCTURE_COLUMNS,
)


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """Names of the columns that hold prompts and lengths.

    `given` lists the fields that the person set: those columns must exist, and where prompt fields
    are among them, the others are not looked at. With `in_template`, a template makes the prompt.
    """

    prompt: str = "prompt"
    messages: str = "messages"
    conversations: str = "conversations"  # chats as ShareGPT writes them
    token_ids: str = "prompt_token_ids"
    tools: str = "tools"
    max_tokens: str = "max_tokens"
    output_len: str = "output_len"
    score: str = "score"  # continuations to score
    id: str | None = None
    given: frozenset[str] = frozenset()
    in_template: frozenset[str] = frozenset()  # columns that the prompt template reads

    @classmethod
    def from_flags(cls, **flags: str | None) -> "ColumnNames":
        """Names from flags, where None means that the flag was not given."""
        given: dict[str, Any] = {name: v for name, v in flags.items() if v is not None}
        return cls(**given, given=frozenset(given))

    def required(self) -> dict[str, str]:
        """Field to column name, for the columns that the person named."""
        plain = ColumnNames()
        named = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _SETS}
        return {
            field: name
            for field, name in named.items()
            if field in self.given or name != getattr(plain, field)
        }

    def prompt_is_named(self) -> bool:
        """Whether the person said where prompts come from."""
        return bool(self.in_template or self.required().keys() & set(_PROMPTS))

    def prompt_fields(self) -> tuple[str, ...]:
        """Which of the fields for prompts may hold a row's prompt; `prompt` with a template."""
        if self.in_template:
            return ("prompt",)
        return tuple(kind for kind in _PROMPTS if kind in self.required()) or _PROMPTS

    def prompt_columns(self) -> tuple[str, ...]:
        """Names of the columns that a row's prompt is made from."""
        if self.in_template:
            return tuple(sorted(self.in_template))
        return tuple(getattr(self, kind) for kind in self.prompt_fields())

    def text_columns(self) -> tuple[str, ...]:
        """Names of the columns that must hold text, or token ids, where a row sets them."""
        is_prompt = not self.in_template and "prompt" in self.prompt_fields()
        return (self.prompt,) if is_prompt else ()

    def used(self) -> frozenset[str]:
        """Names of all columns that ingest reads where they exist."""
        names = {*self.prompt_columns(), *PARAM_COLUMNS}
        names |= {self.tools, self.max_tokens, self.output_len, self.score}
        return frozenset(names | {self.id} if self.id is not None else names)


def check_columns(
    names: ColumnNames, present: Collection[str], path: str, needs_prompt: bool = True
) -> None:
    """Checks that a file has a prompt column and every column that was named for it.

    Raises:
        InputError: one is missing; the hint lists the columns that exist.
    """
    hint = f"columns of this file: {', '.join(present) or 'none'}"
    for field, name in names.required().items():
        if name not in present:
            raise InputError(f"{path} has no column {name!r} (named as {field})", hint)
    for name in sorted(names.in_template):
        if name not in present:
            raise InputError(f"{path} has no column {name!r}, which the template reads", hint)
    prompts = names.prompt_columns()
    if needs_prompt and not any(name in present for name in prompts):
        raise InputError(f"{path} has no column {' or '.join(map(repr, prompts))}", hint)


def check_clash(present: Iterable[str], path: str) -> None:
    """Raises InputError where an input column has the name of an output column."""
    clash = [name for name in present if name in OUTPUT_COLUMNS]
    if clash:
        raise InputError(
            f"{path} already has a column {clash[0]!r}, which the output needs for itself",
            f"rename it; the output adds {', '.join(OUTPUT_COLUMNS)}",
        )
