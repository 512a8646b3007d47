"""A prompt written over columns: `Summarise: {text}`, or Jinja: `Summarise: {{ text }}`.

Runs Jinja in its sandbox; knows no files and no tokens.
"""

import functools
import json
import string
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jinja2
import jinja2.meta
import numpy as np
from jinja2.sandbox import ImmutableSandboxedEnvironment

from blendrun.data.rows import BadRowError, Rejections, RowBatch
from blendrun.errors import InputError

_HINT = "write {column}, or Jinja: {{ column }}; Jinja also takes other braces as they are"


class PromptTemplate:
    """Makes a text of the columns `names` of a row."""

    _jinja: jinja2.Template | None = None
    _parts: Sequence[tuple[str, str | None]] = ()

    def __init__(self, source: str) -> None:
        """Raises InputError where `source` is no template, or names no column."""
        if "{{" in source or "{%" in source:
            self._jinja = _jinja(source)
            names = jinja2.meta.find_undeclared_variables(_ENVIRONMENT.parse(source))
        else:
            self._parts = _parts(source)
            names = {name for _, name in self._parts if name is not None}
        self.names = frozenset(names)
        if not self.names:
            raise InputError(f"the template names no column: {source!r}", _HINT)

    def render(self, values: Mapping[str, Any]) -> str:
        """The prompt of a row whose columns are `values`.

        Raises:
            BadRowError: a column is null or absent, or the template fails.
        """
        if self._jinja is None:
            return "".join(
                text + ("" if name is None else _shown(values, name)) for text, name in self._parts
            )
        try:
            return self._jinja.render(values)
        except BadRowError:
            raise
        except Exception as error:  # a template is a program of its own: anything may come out
            raise BadRowError("template_error", f"prompt template: {error}") from error


@functools.cache
def prompt_template(source: str) -> PromptTemplate:
    """The template of `source`, made once in each process."""
    return PromptTemplate(source)


def with_prompts(source: str, name: str, batch: RowBatch, rejections: Rejections) -> RowBatch:
    """The batch with the texts that a template makes as its column `name`."""
    template = prompt_template(source)
    columns = {column: batch.columns[column] for column in template.names & batch.columns.keys()}
    texts: list[str | None] = []
    for row in range(len(batch)):
        texts.append(None)
        if row in rejections:
            continue
        try:
            texts[row] = template.render({name: _plain(v[row]) for name, v in columns.items()})
        except BadRowError as error:
            rejections[row] = (error.code, error.message)
    return replace(batch, columns={**batch.columns, name: texts})


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _parts(source: str) -> list[tuple[str, str | None]]:
    """Texts, each with the column whose value follows."""
    try:
        parsed = list(string.Formatter().parse(source))
    except ValueError as error:
        raise InputError(f"the template {source!r} is not valid: {error}", _HINT) from error
    for _, name, spec, conversion in parsed:
        if name is not None and (not name.strip() or spec or conversion):
            raise InputError(f"the template {source!r} has braces without a column", _HINT)
    return [(text, name) for text, name, _, _ in parsed]


def _jinja(source: str) -> jinja2.Template:
    try:
        return _ENVIRONMENT.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise InputError(f"the template is not valid Jinja: {error}") from error


def _shown(values: Mapping[str, Any], name: str) -> str:
    value = _not_null(values.get(name), name)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _not_null(value: Any, name: str = "") -> Any:
    if value is None:
        column = f"column {name!r}" if name else "a value"
        raise BadRowError("template_error", f"prompt template: {column} is null")
    return value


_ENVIRONMENT = ImmutableSandboxedEnvironment(
    undefined=jinja2.StrictUndefined, finalize=_not_null, keep_trailing_newline=True
)
