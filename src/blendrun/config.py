"""Settings: TOML files into frozen dataclasses, with the origin of every value.

A setting comes from a flag, else from the job file, else from the default that its dataclass
states; `resolve` keeps which of the three it was. Unknown keys are errors, because a setting
that is silently ignored is worse than none.
"""

import dataclasses
import tomllib
import types
import typing
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from blendrun.errors import InputError

Origin = Literal["flag", "file", "default"]
T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Resolved(Generic[T]):
    """A dataclass of settings, and for each of its fields where the value came from."""

    value: T
    origins: Mapping[str, Origin]


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a TOML file.

    Raises:
        InputError: the file is missing or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid TOML: {error}") from error


def from_table(cls: type[T], table: Mapping[str, Any], where: str) -> T:
    """A dataclass `cls` from a TOML table; `where` names the table in messages.

    Raises:
        InputError: a key that `cls` does not have, one that it needs and is missing, or a value
            of another type.
    """
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    unknown = sorted(set(table) - set(fields))
    if unknown:
        raise InputError(
            f"{where}: unknown key {', '.join(map(repr, unknown))}",
            f"known keys: {', '.join(sorted(fields))}",
        )
    missing = [
        name
        for name, field in fields.items()
        if name not in table
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise InputError(f"{where}: missing key {', '.join(map(repr, missing))}")
    hints = typing.get_type_hints(cls)
    return cls(
        **{key: _convert(value, hints[key], f"{where}: {key}") for key, value in table.items()}
    )


def resolve(
    cls: type[T], flags: Mapping[str, Any], table: Mapping[str, Any], where: str
) -> Resolved[T]:
    """Settings from `flags` (None = not given), then `table`, then the defaults of `cls`.

    Raises:
        InputError: as `from_table`; messages name a flag, or `where` for the table.
    """
    hints = typing.get_type_hints(cls)
    given = {
        key: _convert(value, hints[key], f"--{key.replace('_', '-')}")
        for key, value in flags.items()
        if value is not None
    }
    value = from_table(cls, {**table, **given}, where)
    origins: dict[str, Origin] = {
        f.name: "flag" if f.name in given else "file" if f.name in table else "default"
        for f in dataclasses.fields(cls)  # type: ignore[arg-type]
    }
    return Resolved(value, origins)


def shipped_config(kind: str, name: str) -> Path | None:
    """Path of `configs/<kind>/<name>.toml` in this installation, or None."""
    path = Path(str(resources.files("blendrun"))) / "configs" / kind / f"{name}.toml"
    return path if path.is_file() else None


def shipped_names(kind: str) -> list[str]:
    """Names of the files under `configs/<kind>/`, sorted."""
    folder = Path(str(resources.files("blendrun"))) / "configs" / kind
    return sorted(path.stem for path in folder.glob("*.toml"))


def _convert(value: Any, hint: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        options = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        for words in options[1:]:  # instead of a value: `auto`
            if typing.get_origin(words) is Literal and value in typing.get_args(words):
                return value
        return None if value is None else _convert(value, options[0], where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise InputError(f"{where} must be a list, not {value!r}")
        return tuple(_convert(item, typing.get_args(hint)[0], where) for item in value)
    if origin is Literal:
        if value not in typing.get_args(hint):
            raise InputError(f"{where} must be one of {', '.join(typing.get_args(hint))}")
        return value
    if dataclasses.is_dataclass(hint):
        return from_table(typing.cast(type[Any], hint), value, where)
    if origin in (dict, Mapping) or hint in (dict, Any):
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise InputError(f"{where} must be {hint.__name__}, not {value!r}")
    return value
