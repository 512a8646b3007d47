"""Runs that are killed at random moments; `make soak` does it a thousand times."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent


def test_killed_runs_end_as_unbroken_ones():
    said = subprocess.run(
        [sys.executable, "-m", "soak.run", "--kills", "8", "--rows", "60"],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("8 kills (")
