"""The stand-in, and the engine's calls, against the installed FlashInfer: `make test-flashinfer`.

Skipped where FlashInfer cannot be imported. No GPU is needed: nothing of it is called.
"""

import ast
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import flashinfer_stand_in
from blendrun.engine.self_check import check_compute
from blendrun.kernels.flashinfer.library import NAMES, find_flashinfer
from tiny_devices import stand_in_compute
from tiny_models import tiny_config

VERSION = "0.7.4"
METHODS = ("__init__", "plan", "run")


@pytest.fixture(scope="module")
def flashinfer() -> Any:
    library, reason = find_flashinfer()
    if library is None:
        pytest.skip(f"{reason}: make test-flashinfer")
    return library


def callables(library: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in NAMES:
        found = getattr(library, name)
        if inspect.isclass(found):
            yield from ((f"{name}.{method}", getattr(found, method)) for method in METHODS)
        else:
            yield name, found


def real(library: Any, name: str) -> inspect.Signature:
    """Of a function, or of a method with `self`; one that passes its keywords on: where they go."""
    owner, _, method = name.partition(".")
    found = getattr(library, owner)
    if not method:
        return inspect.signature(found)
    signature = inspect.signature(getattr(found, method))
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    if inspect.Parameter.VAR_KEYWORD in kinds:
        return inspect.signature(getattr(found, f"_{method}_impl"))
    return signature


def test_it_is_the_version_that_the_stand_in_is_made_after(flashinfer: Any):
    assert flashinfer.__version__ == VERSION


@pytest.mark.parametrize("name", [name for name, _ in callables(flashinfer_stand_in)])
def test_what_the_stand_in_takes_the_library_takes_in_the_same_place(name: str, flashinfer: Any):
    theirs = list(real(flashinfer, name).parameters.values())
    by_name = {parameter.name: parameter for parameter in theirs}
    mine = inspect.signature(dict(callables(flashinfer_stand_in))[name]).parameters
    for place, parameter in enumerate(mine.values()):
        assert parameter.name in by_name
        assert parameter.default == by_name[parameter.name].default
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            assert theirs[place].name == parameter.name


def recording() -> tuple[Any, list[tuple[str, tuple[Any, ...], dict[str, Any]]]]:
    """The stand-in, and every call of it."""
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def recorded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append((name, args, kwargs))
            return function(*args, **kwargs)

        return call

    made: dict[str, Any] = {}
    for name in NAMES:
        found = getattr(flashinfer_stand_in, name)
        if inspect.isclass(found):
            members = {m: recorded(f"{name}.{m}", getattr(found, m)) for m in METHODS}
            made[name] = type(name, (found,), members)
        else:
            made[name] = recorded(name, found)
    return SimpleNamespace(**made), calls


def test_every_call_of_the_engine_fits_the_library(flashinfer: Any):
    library, calls = recording()
    config = tiny_config("Qwen3ForCausalLM", head_dim=64)
    for pod in (False, True):
        check_compute(stand_in_compute(library, pod), {}, config, torch.float32)
    attention = stand_in_compute(library).attention
    k_cache, _ = attention.alloc_kv_cache(1, 4, 16, 1, 64, torch.float32)
    decodes = attention.static_decodes(k_cache[0], 2, 1, 1.0)
    ones = np.ones(1, np.int32)
    decodes.move_to(ones, np.zeros((1, 1), np.int32), ones.astype(np.int64))
    assert {name for name, _, _ in calls} == {name for name, _ in callables(flashinfer)}
    for name, args, kwargs in calls:
        real(flashinfer, name).bind(*args, **kwargs)


def test_sms_are_divided_by_a_function_that_is_there(flashinfer: Any):
    """From the source: importing it takes a driver."""
    source = Path(flashinfer.__file__).with_name("green_ctx.py").read_text(encoding="utf-8")
    (found,) = (
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == "split_device_green_ctx_by_sm_count"
    )
    assert [argument.arg for argument in found.args.args] == ["dev", "sm_counts"]
