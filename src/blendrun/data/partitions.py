"""Columns that stand in the names of folders, as Hive writes them: `shard=007/part.parquet`.

A value is text as written: nothing is guessed from it.
"""

from urllib.parse import unquote

from blendrun.data.locations import Location

_NULL = "__HIVE_DEFAULT_PARTITION__"


def partitions_of(location: Location) -> dict[str, str | None]:
    """Name to value of the `name=value` folders directly above a file, from the outermost.

    Looks at the file alone, so that it has the same columns whether it was named itself or found
    in a folder. Writers encode what a folder name cannot hold, such as `%2F`, and null.
    """
    found: list[tuple[str, str | None]] = []
    for folder in reversed(location.parts[:-1]):
        name, mark, value = folder.partition("=")
        if not name or not mark:
            break
        found.append((unquote(name), None if value == _NULL else unquote(value)))
    return dict(reversed(found))
