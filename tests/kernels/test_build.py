"""Building and caching of compiled kernels, on a source of one line."""

import subprocess
import sys
from pathlib import Path

import pytest

from blendrun.kernels.cpu import build

SOURCE = 'extern "C" int answer() { return VALUE; }\n'


def _has_compiler() -> bool:
    try:
        build.find_compiler()
    except build.BuildError:
        return False
    return True


needs_compiler = pytest.mark.skipif(not _has_compiler(), reason="no C++ compiler here")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return _write(tmp_path / "answer.cpp", 42)


def _write(path: Path, value: int) -> Path:
    path.write_text(SOURCE.replace("VALUE", str(value)), encoding="utf-8")
    return path


def _answer(built: build.Built) -> int:
    assert built.library is not None, built.reason
    return int(built.library.answer())


@needs_compiler
def test_second_load_takes_the_cached_file(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    assert _answer(build.load_library("answer", [source], folder)) == 42
    (cached,) = folder.iterdir()
    stamp = cached.stat().st_mtime_ns
    assert _answer(build.load_library("answer", [source], folder)) == 42
    assert [path.stat().st_mtime_ns for path in folder.iterdir()] == [stamp]


@needs_compiler
def test_changed_source_is_another_library(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    assert _answer(build.load_library("answer", [source], folder)) == 42
    assert _answer(build.load_library("answer", [_write(source, 43)], folder)) == 43


@needs_compiler
def test_flags_from_the_environment_win_and_make_another_library(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.write_text(
        "#ifdef __OPTIMIZE__\n#define V 1\n#else\n#define V 0\n#endif\n"
        'extern "C" int answer() { return V; }\n',
        encoding="utf-8",
    )
    assert _answer(build.load_library("answer", [source], tmp_path / "cache")) == 1
    monkeypatch.setenv(build.FLAGS_VARIABLE, "-O0")
    assert _answer(build.load_library("answer", [source], tmp_path / "cache")) == 0


@needs_compiler
@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty"])
def test_damaged_cache_file_is_rebuilt(source: Path, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "cache"
    good = build.load_library("answer", [source], folder)
    assert good.library is not None
    (cached,) = folder.iterdir()
    content = bytearray(cached.read_bytes())
    content[len(content) // 2] ^= 0xFF
    cached.unlink()  # this process has the old file mapped
    damaged = {"truncated": bytes(content[:1000]), "flipped": bytes(content), "empty": b""}
    cached.write_bytes(damaged[damage])
    assert _answer(build.load_library("answer", [source], folder)) == 42
    assert cached.read_bytes() != damaged[damage]


@needs_compiler
def test_two_processes_may_build_at_once(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    script = (
        "import pathlib, sys; from blendrun.kernels.cpu import build; "
        "source, folder = map(pathlib.Path, sys.argv[1:]); "
        "print(build.load_library('answer', [source], folder).library.answer())"
    )
    command = [sys.executable, "-c", script, str(source), str(folder)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=120)[0] for process in both] == ["42\n", "42\n"]
    assert [path.suffix for path in folder.iterdir()] == [".so"]


def test_missing_compiler_is_the_reason(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    built = build.load_library("answer", [source], tmp_path / "cache")
    assert built.library is None
    assert "no C++ compiler found" in built.reason


def test_compiler_named_by_cxx_is_not_silently_replaced(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    built = build.load_library("answer", [source], tmp_path / "cache")
    assert built.library is None
    assert "CXX=no-such-compiler" in built.reason


@needs_compiler
def test_compile_error_is_the_reason(source: Path, tmp_path: Path) -> None:
    source.write_text("#error the moon is in the wrong phase\n", encoding="utf-8")
    built = build.load_library("answer", [source], tmp_path / "cache")
    assert built.library is None
    assert "the moon is in the wrong phase" in built.reason


@needs_compiler
def test_unwritable_cache_is_the_reason(source: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder", encoding="utf-8")
    built = build.load_library("answer", [source], blocked / "cache")
    assert built.library is None
    assert "Not a directory" in built.reason


def test_cache_folder_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLENDRUN_CACHE_DIR", str(tmp_path))
    assert build.cache_dir() == tmp_path / "kernels"
    monkeypatch.delenv("BLENDRUN_CACHE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert build.cache_dir() == tmp_path / ".cache" / "blendrun" / "kernels"
