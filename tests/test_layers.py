"""The import graph of the package: only downward, and torch only where tensors are."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import blendrun

LAYERS = (
    ("errors", "units", "config", "compiled"),
    ("data",),
    ("cost",),
    ("tree",),
    ("workloads",),
    ("schedule",),
    ("kernels",),
    ("engine",),
    ("launch",),
    ("report",),
    ("cli",),
)
RANK = {part: rank for rank, parts in enumerate(LAYERS) for part in parts}
TORCH_PARTS = ("kernels", "engine", "launch")
PACKAGE = Path(blendrun.__file__).parent
OWN = "blendrun"


def modules(package: Path) -> Iterator[tuple[Path, str]]:
    """Every Python file with its part of the package; symlinked folders count."""
    for entry in sorted(package.iterdir()):
        if entry.suffix == ".py":
            yield entry, entry.stem
        elif entry.is_dir() and entry.name not in ("configs", "__pycache__"):
            for path in sorted(entry.rglob("*.py")):
                yield path, entry.name


def imports(path: Path, package: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import anywhere in the file: top, lazy or typing-only."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:  # relative: the name counts from the file's own folder
                parts = path.relative_to(package).with_suffix("").parts
                module = ".".join(filter(None, (OWN, *parts[: len(parts) - node.level], module)))
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and (name := imported_by_call(node)):
            yield node.lineno, name


def imported_by_call(call: ast.Call) -> str | None:
    """Module that `import_module("name")` names, if the call is one."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name == "import_module" and call.args and isinstance(call.args[0], ast.Constant):
        return str(call.args[0].value)
    return None


def violations(package: Path) -> list[str]:
    found = []
    for path, part in modules(package):
        if part in ("__init__", "__main__"):
            rank = 0 if part == "__init__" else RANK["cli"]
        elif part in RANK:
            rank = RANK[part]
        else:
            found.append(f"{path}: {part!r} is in no layer")
            continue
        for line, name in imports(path, package):
            head, *rest = name.split(".")
            if head == "torch" and part not in TORCH_PARTS:
                found.append(f"{path}:{line}: torch in {part}")
            elif head == OWN and rest and RANK.get(rest[0], 0) > rank:
                found.append(f"{path}:{line}: {part} imports {rest[0]}")
    return found


def test_imports_point_only_downward_and_torch_stays_in_its_parts():
    assert violations(PACKAGE) == []


def test_the_walk_sees_the_whole_package():
    parts = {part for _, part in modules(PACKAGE)}
    assert {"errors", "units", "config", "cost", "kernels"} <= parts
    assert parts - {"__init__", "__main__"} <= set(RANK)


@pytest.mark.parametrize(
    ("place", "code", "message"),
    [
        ("cost/a.py", "from blendrun.tree.trie import Trie", "cost imports tree"),
        ("cost/a.py", "import blendrun.engine", "cost imports engine"),
        ("cost/a.py", "from blendrun import cli", "cost imports cli"),
        ("cost/a.py", "def f():\n    from blendrun.report import table", "cost imports report"),
        ("data/sub/a.py", "from ...tree import trie", "data imports tree"),
        ("data/a.py", "if TYPE_CHECKING:\n    import blendrun.cost.hardware", "data imports cost"),
        (
            "tree/a.py",
            "import importlib\nimportlib.import_module('blendrun.cli')",
            "tree imports cli",
        ),
        ("config.py", "from blendrun.data.rows import ingest", "config imports data"),
        ("schedule/a.py", "def f():\n    import torch", "torch in schedule"),
        ("report/a.py", "from torch.nn import Linear", "torch in report"),
        ("kernels/cpu/a.py", "from ...engine import decoder", "kernels imports engine"),
        ("stray.py", "", "'stray' is in no layer"),
    ],
)
def test_a_planted_wrong_import_is_found(place: str, code: str, message: str, tmp_path: Path):
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code)
    found = violations(tmp_path)
    assert len(found) == 1
    assert message in found[0]


def test_right_imports_pass(tmp_path: Path):
    (tmp_path / "engine").mkdir()
    code = "import torch\nfrom blendrun.kernels import cpu\nfrom blendrun import __version__\n"
    (tmp_path / "engine" / "a.py").write_text(
        code + "from . import b\nfrom ..errors import InputError\n"
    )
    assert violations(tmp_path) == []
