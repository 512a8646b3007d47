"""Kernels compiled for GPUs that are not here: nothing spills, all fits.

Compilation runs in processes of its own: in this one Triton interprets.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed; it exists for Linux only")

from blendrun.kernels import triton as package
from blendrun.kernels.triton.compiled_ahead import SHARED_BYTES, Resources, compile_launch
from blendrun.kernels.triton.model_launches import MODELS, model_launches
from tiny_nhd_pages import DEVICE

MODULE = "blendrun.kernels.triton.compiled_ahead"
# every kernel once, and attention for the other shapes; `make kernel-table` has all
SELECTION = (
    "llama-3.1-8b bfloat16",
    "qwen2.5-7b bfloat16 attention causal",
    "smollm2-135m float32 attention causal",
    "head-dim-256 bfloat16 attention causal",
    "qwen3-32b bfloat16 rotary",
)
SPILLING = f"""
from dataclasses import replace
from {MODULE} import compile_launch
from blendrun.kernels.triton.model_launches import model_launches

launch = model_launches(90)["head-dim-256 bfloat16 attention causal rows=64"]
larger = replace(launch, args=launch.args | {{"BLOCK_M": 128}}, num_warps=4)
print(compile_launch(larger, 90).misfit(90))
"""


def _python(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env["TRITON_CACHE_DIR"] = str(folder)
    return subprocess.run([sys.executable, *args], env=env, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("arch", sorted(SHARED_BYTES))
def test_all_kernels_compile_and_nothing_spills(arch: int, tmp_path: Path) -> None:
    selection = [arg for text in SELECTION for arg in ("--match", text)]
    done = _python(tmp_path, "-m", MODULE, "--arch", str(arch), *selection)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    names = [name for name in model_launches(arch) if any(text in name for text in SELECTION)]
    assert all(name in done.stdout for name in names)
    assert f"{len(names)} compiled, 0 that do not fit" in done.stdout


def test_a_tile_too_large_for_the_registers_is_noticed(tmp_path: Path) -> None:
    done = _python(tmp_path, "-c", SPILLING)
    assert "registers spilled" in done.stdout, done.stderr


def test_what_does_not_fit_is_said() -> None:
    assert Resources(64, 0, 163 * 1024, 4).misfit(80) is None
    assert "shared memory" in str(Resources(64, 0, 163 * 1024 + 1, 4).misfit(80))
    assert Resources(64, 0, 163 * 1024 + 1, 4).misfit(90) is None
    assert "8 bytes of registers" in str(Resources(64, 8, 0, 4).misfit(90))


def test_every_kernel_that_is_launched_is_compiled_ahead() -> None:
    launched = set()
    for path in Path(package.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Launch":
                launched.add(ast.unparse(node.args[0]))
    for model in MODELS:
        names = {n: x for n, x in model_launches(90).items() if n.startswith(model.name)}
        assert {launch.kernel.__name__ for launch in names.values()} == launched


@pytest.mark.skipif(DEVICE != "cpu", reason="kernels are not interpreted in this process")
def test_nothing_is_compiled_where_kernels_are_interpreted() -> None:
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET"):
        compile_launch(next(iter(model_launches(90).values())), 90)
