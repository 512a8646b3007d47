from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from blendrun.config import from_table, read_toml, resolve, shipped_config, shipped_names
from blendrun.errors import InputError


@dataclass(frozen=True, slots=True)
class Inner:
    size: int


@dataclass(frozen=True, slots=True)
class Settings:
    name: str
    rate: float = 1.0
    count: int = 3
    mode: Literal["fast", "slow"] = "fast"
    tags: tuple[str, ...] = ()
    limit: int | None = None
    on: bool = False
    inner: Inner | None = None
    notes: dict[str, str] = field(default_factory=dict)


def test_a_table_fills_every_kind_of_field():
    table = {
        "name": "a",
        "rate": 2,
        "count": 5,
        "mode": "slow",
        "tags": ["x", "y"],
        "limit": 7,
        "on": True,
        "inner": {"size": 4},
        "notes": {"rate": "guess"},
    }
    expected = Settings("a", 2.0, 5, "slow", ("x", "y"), 7, True, Inner(4), {"rate": "guess"})
    assert from_table(Settings, table, "file") == expected
    assert isinstance(from_table(Settings, table, "file").rate, float)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "a", "colour": "red"}, "file: unknown key 'colour'"),
        ({"rate": 1.0}, "file: missing key 'name'"),
        ({"name": 3}, "file: name must be str, not 3"),
        ({"name": "a", "count": 1.5}, "file: count must be int, not 1.5"),
        ({"name": "a", "count": True}, "file: count must be int, not True"),
        ({"name": "a", "rate": "fast"}, "file: rate must be float"),
        ({"name": "a", "mode": "medium"}, "file: mode must be one of fast, slow"),
        ({"name": "a", "tags": "x"}, "file: tags must be a list"),
        ({"name": "a", "tags": ["x", 1]}, "file: tags must be str, not 1"),
        ({"name": "a", "inner": {"size": 1, "depth": 2}}, "file: inner: unknown key 'depth'"),
    ],
)
def test_a_wrong_table_is_refused_by_key(table: dict[str, object], message: str):
    with pytest.raises(InputError, match=message):
        from_table(Settings, table, "file")


def test_unknown_key_message_lists_the_known_ones():
    with pytest.raises(InputError) as caught:
        from_table(Settings, {"name": "a", "colour": "red"}, "file")
    assert "count" in str(caught.value.hint)


def test_flag_wins_over_file_and_file_over_default_and_the_origin_is_kept():
    resolved = resolve(Settings, {"count": 9, "rate": None}, {"name": "a", "count": 5}, "file")
    assert (resolved.value.count, resolved.value.rate) == (9, 1.0)
    origins = resolved.origins
    assert (origins["count"], origins["name"], origins["rate"]) == ("flag", "file", "default")


def test_a_missing_file_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="cannot read"):
        read_toml(tmp_path / "none.toml")


@pytest.mark.parametrize("content", [b"= 1", b"a = [1", b"a = '\xff'"])
def test_a_file_that_is_not_toml_is_refused(content: bytes, tmp_path: Path):
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(InputError, match="is not valid TOML"):
        read_toml(path)


def test_shipped_files_are_found_by_name():
    assert "cpu" in shipped_names("hardware")
    path = shipped_config("hardware", "cpu")
    assert path is not None
    assert read_toml(path)["name"] == "cpu"
    assert shipped_config("hardware", "no-such") is None
    assert shipped_names("no-such-kind") == []
