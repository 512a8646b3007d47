"""The built wheel, used away from the repository by an interpreter that sees only it and the
installed dependencies."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROMPTS = [[1, 2, 3, 4, 5], [1, 2, 3, 9], [7, 8]]


def call(*command: str | Path, cwd: Path) -> str:
    """Stdout of a command that must succeed; none of the repository's paths lead into it."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    call(*build, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the executables of an environment that holds the wheel alone, and sees the rest.

    A path file adds this interpreter's packages as they are; their own path files (the editable
    install of the repository is one) are not read, so `blendrun` can only be the wheel's.
    """
    folder = tmp_path_factory.mktemp("env")
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    scripts = folder / "bin"
    pip = (
        sys.executable,
        "-m",
        "pip",
        "--python",
        scripts / "python",
        "--disable-pip-version-check",
    )
    call(*pip, "install", "--no-deps", "--no-index", "--quiet", wheel, cwd=folder)
    find = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(call(scripts / "python", "-c", find, cwd=folder).strip())
    seen = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "outer.pth").write_text("\n".join(sorted(seen)) + "\n")
    return scripts


def test_wheel_holds_kernels_configs_and_the_parts_of_pages(wheel: Path):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"blendrun/report/tree_page.{kind}" for kind in ("html", "css", "js")} <= names
    for folder, suffixes in (("kernels", (".py", ".cpp", ".h")), ("configs", (".toml",))):
        files = [path for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
        assert files
        assert {f"blendrun/{path.relative_to(ROOT).as_posix()}" for path in files} <= names


def test_wheel_holds_no_leftovers(wheel: Path):
    names = zipfile.ZipFile(wheel).namelist()
    assert [n for n in names if "__pycache__" in n or n.endswith((".so", ".o"))] == []
    assert {name.split("/")[0].split("-")[0] for name in names} == {"blendrun"}


def test_installed_package_is_the_wheels_own(installed: Path, tmp_path: Path):
    where = "import blendrun; print(blendrun.__file__)"
    path = Path(call(installed / "python", "-c", where, cwd=tmp_path).strip())
    assert installed.parent in path.parents


def test_help_works_from_another_folder(installed: Path, tmp_path: Path):
    text = call(installed / "blendrun", "--help", cwd=tmp_path)
    for command in ("plan", "execute", "report", "run"):
        assert command in text


def test_plan_works_from_another_folder_without_weights_or_hub(installed: Path, tmp_path: Path):
    rows = [{"prompt_token_ids": ids, "max_tokens": 4} for ids in PROMPTS]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    call(
        installed / "blendrun", "plan", "prompts.jsonl", "-o", "plan.json",
        "--model", "configs/models/llama-3.1-8b.toml", "--hardware", "a100-80gb-sxm",
        cwd=tmp_path,
    )  # fmt: skip
    assert json.loads((tmp_path / "plan.json").read_text())
    assert len(list(tmp_path.iterdir())) > 2  # the prompts, the plan, and its sidecars
