"""Which columns of an input file mean what, and which names the output needs for itself.

Knows names only; types and values are judged where they are read.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields

from blendrun.data.answers import OUTPUT_COLUMNS
from blendrun.data.param_kinds import PARAM_KINDS
from blendrun.data.structures import STRUCTURE_COLUMNS
from blendrun.errors import InputError

PARAM_COLUMNS = (
    *(name for name in PARAM_KINDS if name != "max_tokens"),
    *STRUCTURE_COLUMNS,
)


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """Names of the columns that hold prompts and lengths.

    `given` lists the fields that the person set: those columns must exist, and where one of the
    three prompt fields is among them, the other two are not looked at.
    """

    prompt: str = "prompt"
    messages: str = "messages"
    token_ids: str = "prompt_token_ids"
    max_tokens: str = "max_tokens"
    output_len: str = "output_len"
    given: frozenset[str] = frozenset()

    @classmethod
    def from_flags(cls, **flags: str | None) -> "ColumnNames":
        """Names from flags, where None means that the flag was not given."""
        given = {name: value for name, value in flags.items() if value is not None}
        return cls(**given, given=frozenset(given))

    def required(self) -> dict[str, str]:
        """Field to column name, for the columns that the person named."""
        named = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "given"}
        plain = ColumnNames()
        return {
            field: name
            for field, name in named.items()
            if field in self.given or name != getattr(plain, field)
        }

    def prompt_fields(self) -> tuple[str, ...]:
        """Which of `prompt`, `messages` and `token_ids` may hold a row's prompt."""
        kinds = ("prompt", "messages", "token_ids")
        return tuple(kind for kind in kinds if kind in self.required()) or kinds

    def used(self) -> frozenset[str]:
        """Names of all columns that ingest reads where they exist."""
        prompts = (getattr(self, kind) for kind in self.prompt_fields())
        return frozenset((*prompts, self.max_tokens, self.output_len, *PARAM_COLUMNS))


def check_columns(names: ColumnNames, present: Collection[str], path: str) -> None:
    """Checks that a file has a prompt column and every column that was named for it.

    Raises:
        InputError: one is missing; the hint lists the columns that exist.
    """
    hint = f"columns of this file: {', '.join(present) or 'none'}"
    for field, name in names.required().items():
        if name not in present:
            raise InputError(f"{path} has no column {name!r} (named as {field})", hint)
    prompts = [getattr(names, kind) for kind in names.prompt_fields()]
    if not any(name in present for name in prompts):
        raise InputError(f"{path} has no column {' or '.join(map(repr, prompts))}", hint)


def check_clash(present: Iterable[str], path: str) -> None:
    """Raises InputError where an input column has the name of an output column."""
    clash = [name for name in present if name in OUTPUT_COLUMNS]
    if clash:
        raise InputError(
            f"{path} already has a column {clash[0]!r}, which the output needs for itself",
            f"rename it; the output adds {', '.join(OUTPUT_COLUMNS)}",
        )
