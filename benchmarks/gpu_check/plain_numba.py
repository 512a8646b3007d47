"""For machines without numba: functions that it would compile run as the Python that they are.

Enough for the small index arrays of `numerics`; anything larger asks for numba itself.
"""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any


def stand_in_for_numba() -> bool:
    """Puts a numba that compiles nothing in place, if there is none; whether it did."""
    if find_spec("numba") is not None:
        return False
    numba, core = ModuleType("numba"), ModuleType("numba.core")
    numba.njit = _njit  # type: ignore[attr-defined]
    numba.__version__ = "none"
    core.config = SimpleNamespace(CACHE_DIR="")  # type: ignore[attr-defined]
    sys.modules |= {"numba": numba, "numba.core": core}
    return True


def _njit(*_: Any, **__: Any) -> Callable[[Any], Any]:
    return lambda function: function
