"""Helpers beside this file can be imported from every test: `tiny_models`, `tiny_gguf`,
`tiny_jobs`."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("blendrun", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("blendrun")
sys.path.insert(0, str(Path(__file__).parent))
# Triton looks at this once, when it is imported: its kernels run here without a GPU. With 0 the
# same tests run on one.
os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with random weights; for reading only."""
    from tiny_models import make_checkpoint

    return make_checkpoint(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture(autouse=True)
def own_config(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees what `calibrate` has measured here."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "config"))
