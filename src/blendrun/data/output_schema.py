"""The columns of the output: those of all inputs, then the answer's.

Knows types, not values: whatever could fail while writing is refused here, before the run.
"""

from collections.abc import Sequence
from functools import reduce

import pyarrow as pa

from blendrun.data.answers import ANSWER_SCHEMA, OUTPUT_COLUMNS
from blendrun.data.columns import check_clash
from blendrun.data.json_kinds import ARROW_TYPES
from blendrun.data.locations import locate
from blendrun.data.parquet_reader import read_schema
from blendrun.data.sources import SourceFile
from blendrun.errors import InputError


def output_schema(
    sources: Sequence[SourceFile], answer_columns: Sequence[str] = OUTPUT_COLUMNS
) -> pa.Schema:
    """Schema of `outputs.parquet`: exactly the input's for one Parquet file, else the union.

    `answer_columns` come last. Columns of several files are matched by name. Types may widen where
    no value can change.

    Raises:
        InputError: two files hold one name with types that do not go together, or a name that
            the output needs for itself.
    """
    schemas = [source_schema(source) for source in sources]
    for source, schema in zip(sources, schemas, strict=True):
        check_clash(schema.names, source.path)
    merged = schemas[0] if len(schemas) == 1 else _merge(sources, schemas)
    if not any(source.format == "parquet" for source in sources):
        merged = pa.schema([_null_as_string(field) for field in merged])
    return reduce(
        lambda schema, name: schema.append(ANSWER_SCHEMA.field(name)), answer_columns, merged
    )


def source_schema(source: SourceFile) -> pa.Schema:
    """Schema of one input as it is read."""
    if source.format == "parquet":
        return read_schema(locate(source.path))
    return pa.schema([(name, ARROW_TYPES[kind]) for name, kind in source.columns])


def _null_as_string(field: pa.Field) -> pa.Field:
    return field.with_type(pa.string()) if pa.types.is_null(field.type) else field


def _merge(sources: Sequence[SourceFile], schemas: Sequence[pa.Schema]) -> pa.Schema:
    merged, seen = schemas[0], dict.fromkeys(schemas[0].names, sources[0].path)
    for source, schema in zip(sources, schemas, strict=True):
        twice = [name for name in schema.names if schema.names.count(name) > 1]
        if twice:
            raise InputError(f"{source.path} has more than one column {twice[0]!r}")
        for field in schema:
            if field.name not in seen:
                merged = merged.append(field)
                seen[field.name] = source.path
                continue
            index = merged.get_field_index(field.name)
            joined = _join(merged.field(index), field)
            if joined is None:
                raise InputError(
                    f"column {field.name!r} is {merged.field(index).type} in {seen[field.name]} "
                    f"and {field.type} in {source.path}",
                    "give it one type in all files, or run them as separate jobs",
                )
            merged = merged.set(index, joined)
    # A file that lacks the column has nulls there.
    names = [set(schema.names) for schema in schemas]
    return pa.schema(
        [f if all(f.name in n for n in names) else f.with_nullable(True) for f in merged],
        metadata=merged.metadata,
    )


def _join(first: pa.Field, second: pa.Field) -> pa.Field | None:
    """One field that holds every value of both unchanged, or None."""
    if first.type == second.type:
        return first.with_nullable(first.nullable or second.nullable)
    try:
        schemas = [pa.schema([_plain(field)]) for field in (first, second)]
        joined = pa.unify_schemas(schemas, promote_options="permissive").field(0)
        for field in (first, second):
            pa.nulls(1, field.type).cast(joined.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        return None
    keeps = _keeps(first.type, joined.type) and _keeps(second.type, joined.type)
    return joined if keeps else None


def _plain(field: pa.Field) -> pa.Field:
    """Dictionary and view strings as plain ones, which unify with others."""
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    return field.with_type(pa.string() if kind == pa.string_view() else kind)


def _keeps(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a cast keeps every value: not from int64 to float64, nor from s to ns."""
    types = pa.types
    if source == target or types.is_null(source):
        return True
    if types.is_dictionary(source):
        return _keeps(source.value_type, target)
    if types.is_integer(source) and types.is_integer(target):
        unsigned = types.is_unsigned_integer(source)
        if unsigned == types.is_unsigned_integer(target):
            return bool(source.bit_width <= target.bit_width)
        return unsigned and bool(source.bit_width < target.bit_width)
    if types.is_floating(source) and types.is_floating(target):
        return bool(source.bit_width <= target.bit_width)
    if types.is_decimal(source) and types.is_decimal(target):
        digits = source.precision - source.scale <= target.precision - target.scale
        return bool(source.scale <= target.scale and digits)
    for families in (_STRINGS, _BINARIES):
        if source in families and target in families:
            return True
    if any(is_list(source) and is_list(target) for is_list in (types.is_list, types.is_large_list)):
        return _keeps(source.value_type, target.value_type)
    if types.is_struct(source) and types.is_struct(target):
        return all(
            target.get_field_index(f.name) >= 0 and _keeps(f.type, target.field(f.name).type)
            for f in source
        )
    return False


_STRINGS = (pa.string(), pa.large_string(), pa.string_view())
_BINARIES = (pa.binary(), pa.large_binary())
