"""The cache of compiled functions follows the source."""

from pathlib import Path

import numba

from blendrun import compiled


def test_the_cache_folder_is_named_after_the_source(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("BLENDRUN_CACHE_DIR", str(tmp_path))
    compiled._cache_folder.cache_clear()
    folder = compiled._cache_folder()
    assert folder.parent == tmp_path / "compiled"
    assert folder == compiled._cache_folder()
    monkeypatch.setattr(numba, "__version__", "0.0")
    compiled._cache_folder.cache_clear()
    assert compiled._cache_folder() != folder
    compiled._cache_folder.cache_clear()


def test_a_part_is_called_from_compiled_code():
    @compiled.compiled_part
    def twice(x: int) -> int:
        return 2 * x

    @compiled.compiled
    def outer(x: int) -> int:
        return twice(x) + 1

    assert outer(3) == 7
