"""A command that is told to end while it still loads says so, with the code of an interrupt."""

import signal
import subprocess
import sys

import pytest

# what takes long to load sends the signal itself, so that the moment is always the same
_LOADING = """
import os, signal, sys
from importlib.abc import MetaPathFinder

class Slow(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "blendrun.cli.main":
            os.kill(os.getpid(), {signal})
        return None

sys.meta_path.insert(0, Slow())
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
from blendrun.__main__ import main
main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_loading_ends_with_130_and_a_word(number: int):
    code = _LOADING.format(signal=int(number))
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 130
    assert ended.stderr == "interrupted\n"
