"""Columns of input files held against what was asked of them.

Knows schemas and names, no values.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

import pyarrow as pa

from blendrun.data.columns import ColumnNames, check_clash, check_columns
from blendrun.data.input_options import InputOptions
from blendrun.data.locations import Location
from blendrun.data.openai_batch import is_batch_file
from blendrun.data.parquet_reader import read_schema
from blendrun.data.prompt_template import prompt_template
from blendrun.data.sources import format_of
from blendrun.errors import InputError


def with_template(columns: ColumnNames, options: InputOptions) -> ColumnNames:
    """The columns, with those that the template reads. Raises InputError."""
    if options.template is None:
        return columns
    if options.format == "openai":
        raise InputError("a batch file has its prompts in bodies: a template cannot make them")
    named = [name for name in columns.prompt_fields() if name in columns.required()]
    if named:
        raise InputError(
            f"a template makes the prompt, and so would the column named as {named[0]}",
            "leave one of them out",
        )
    return replace(columns, in_template=prompt_template(options.template).names)


def check_schemas(files: Sequence[Location], columns: ColumnNames, options: InputOptions) -> None:
    """Refuses Parquet files by their columns before any is read."""
    for path in files:
        if format_of(path) != "parquet":
            continue
        if options.format == "openai":
            raise InputError(f"{path}: batch files of OpenAI's are JSON lines, not Parquet")
        names = read_schema(path).names
        check_columns(columns, names, str(path))
        check_clash(names, str(path))
        twice = [name for name in names if name in columns.used() and names.count(name) > 1]
        if twice:
            raise InputError(f"{path} has more than one column {twice[0]!r}", "rename all but one")


def check_file(
    columns: ColumnNames, options: InputOptions, present: Collection[str], path: str
) -> None:
    """Checks the columns of a JSONL file; batch requests bring their own prompts."""
    requests = is_batch_file(present, columns, options.format)
    check_columns(columns, present, path, needs_prompt=not requests)


def may_hold_text(files: Sequence[Location], columns: ColumnNames) -> bool:
    """Whether a prompt may have to be parsed, rendered or tokenized."""
    if columns.in_template:
        return True
    for path in files:
        if format_of(path) != "parquet":
            return True
        fields = [f for f in read_schema(path) if f.name in columns.prompt_columns()]
        if not all(
            pa.types.is_list(field.type) and pa.types.is_integer(field.type.value_type)
            for field in fields
        ):
            return True
    return False
