"""The batcher is compiled once, and as runs call it."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from blendrun.schedule import compile_batcher as module


def test_processes_that_begin_together_compile_once(tmp_path: Path):
    """Each looks into an empty cache; all but the first find one that has been filled."""
    script = f"""
from pathlib import Path
from blendrun import compiled
from blendrun.schedule import compile_batcher as module
done = Path({str(tmp_path)!r}) / "done"
module.is_first_use = lambda: not done.exists()
def run() -> None:
    print("compiles")
    done.touch()
module._run_one_request = run
module.compile_batcher()
"""
    environment = {**os.environ, "BLENDRUN_CACHE_DIR": str(tmp_path)}

    def start(_: int) -> str:
        command = [sys.executable, "-c", script]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout

    with ThreadPoolExecutor(3) as pool:
        assert sorted(pool.map(start, range(3))) == ["", "", "compiles\n"]


def test_nothing_is_run_where_the_cache_is_full(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "is_first_use", lambda: False)
    monkeypatch.setattr(module, "_run_one_request", lambda: pytest.fail("compiled again"))
    module.compile_batcher()


def test_one_request_leaves_nothing_of_a_run_to_compile():
    """In a process of its own, where nothing is loaded yet."""
    script = """
from blendrun.schedule import batcher, compile_batcher
from tiny_steps import TinyRun, distinct
functions = batcher.decide, batcher.commit, batcher.refreshed, batcher.too_large, batcher.begin
if hasattr(batcher.decide, "signatures"):
    compile_batcher._run_one_request()
    before = [len(function.signatures) for function in functions if hasattr(function, "signatures")]
    TinyRun(distinct([4, 3]), [2, 5], max_seqs=2, chunk_size=8, believed=[3, 3]).finish()
    after = [len(function.signatures) for function in functions if hasattr(function, "signatures")]
    assert before == after and min(after) > 0, (before, after)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)
