"""What each section imports, and what of it this machine lacks. Needs nothing itself."""

from collections.abc import Sequence
from importlib.util import find_spec

DEVICE = ("torch", "numpy")
# blendrun's own dependencies: import name by the name of the wheel
BLENDRUN = {
    "gguf": "gguf",
    "jinja2": "jinja2",
    "matplotlib": "matplotlib",
    "msgspec": "msgspec",
    "numba": "numba",
    "numpy": "numpy",
    "pyarrow": "pyarrow",
    "rich": "rich",
    "safetensors": "safetensors",
    "tokenizers": "tokenizers",
    "tqdm": "tqdm",
    "transformers": "transformers",
    "typer": "typer",
}
OPTIONAL = {"triton": "our own kernels", "flashinfer": "FlashInfer's kernels"}


def missing(names: Sequence[str]) -> list[str]:
    """Those of `names` that cannot be imported here."""
    return [name for name in names if find_spec(name) is None]


def why_not(needs: Sequence[str]) -> str | None:
    """Why a section with these needs cannot run, in one line; None: it can."""
    lacking = missing(needs)
    return f"missing: {', '.join(lacking)}" if lacking else None
