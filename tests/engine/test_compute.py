"""Which device and kernels are taken, and why."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import flashinfer_stand_in
from blendrun.engine import compute
from blendrun.engine.compute import choose_compute
from blendrun.engine.sampler import PLAIN_TOKENS
from blendrun.errors import InputError
from blendrun.kernels.flashinfer import library


def chosen(device: str = "auto", attention: str = "auto", **how: Any) -> compute.Compute:
    wanted = {"head_dim": 64, "dtype": torch.bfloat16, "pod": False, **how}
    return choose_compute(device, attention, **wanted)  # type: ignore[arg-type]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU with FlashInfer, as far as choosing goes."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    found = (flashinfer_stand_in, "FlashInfer 0.0")
    monkeypatch.setattr(compute, "find_flashinfer", lambda: found)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_it_is_the_cpu():
    assert chosen().device.type == "cpu"
    assert chosen(attention="torch").attention.backend == "torch"


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"device": "cuda"}, "torch sees no GPU"),
        ({"attention": "flashinfer"}, "--attention flashinfer is for GPUs"),
        ({"attention": "triton", "device": "cpu"}, "--attention triton is for GPUs"),
        ({"pod": True}, "--pod is for GPUs"),
    ],
)
def test_what_needs_a_gpu_is_refused_without_one(wanted: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        chosen(**wanted)


@pytest.mark.usefixtures("gpu")
def test_with_a_gpu_it_is_flashinfer_there_unless_told_otherwise():
    taken = chosen()
    assert str(taken.device) == "cuda:0"
    assert taken.attention.backend == "flashinfer"
    assert taken.attention.backend_reason() == "FlashInfer 0.0"
    assert taken.kernels["rms_norm"] == "FlashInfer 0.0"
    assert chosen(device="cpu").device.type == "cpu"
    plain = chosen(attention="torch")
    assert (plain.device.type, plain.attention.backend) == ("cuda", "torch")


@pytest.mark.usefixtures("gpu")
def test_beside_flashinfer_tokens_are_found_and_drawn_by_triton_where_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(compute, "_triton_version", lambda: None)
    taken = chosen()
    assert taken.tokens is PLAIN_TOKENS
    assert taken.kernels["draw"] == "torch on cuda: no Triton"
    pytest.importorskip("triton")
    monkeypatch.setattr(compute, "_triton_version", lambda: "3.9")
    for taken in (chosen(), chosen(attention="triton")):
        assert taken.tokens.draw is not None
        assert taken.kernels["argmax"].startswith("Triton 3.9")
        assert taken.kernels["draw"].startswith("Triton 3.9")
    assert chosen(attention="torch").tokens is PLAIN_TOKENS


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"dtype": torch.float32}, "not float32"),
        ({"head_dim": 96}, "no kernels for heads of 96"),
    ],
)
def test_what_flashinfer_does_not_take_another_does(
    wanted: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(compute, "_triton_version", lambda: None)
    taken = chosen(**wanted)
    assert taken.attention.backend == "torch"
    assert reason in taken.attention.backend_reason()
    for asked in ({"attention": "flashinfer"}, {"pod": True}):
        with pytest.raises(InputError, match=reason):
            chosen(**wanted, **asked)


@pytest.mark.usefixtures("gpu")
def test_pod_needs_flashinfer_to_be_what_is_asked_for():
    with pytest.raises(InputError, match="--pod: another attention was asked for"):
        chosen(attention="torch", pod=True)


@pytest.mark.usefixtures("gpu")
def test_without_flashinfer_it_is_triton_and_without_that_plain_torch(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(compute, "find_flashinfer", lambda: (None, "it is not there"))
    monkeypatch.setattr(compute, "_triton_version", lambda: None)
    taken = chosen().attention
    assert taken.backend == "torch"
    assert "it is not there" in taken.backend_reason()
    with pytest.raises(InputError, match="Triton is not installed"):
        chosen(attention="triton")
    pytest.importorskip("triton")
    monkeypatch.setattr(compute, "_triton_version", lambda: "3.9")
    taken = chosen().attention
    assert taken.backend == "triton"
    assert taken.backend_reason() == "Triton 3.9: it is not there"


def test_a_flashinfer_that_lacks_what_is_needed_is_none(monkeypatch: pytest.MonkeyPatch):
    old = SimpleNamespace(**dict.fromkeys(library.NAMES[1:]), __version__="0.1")
    monkeypatch.setattr(library.importlib, "import_module", lambda _: old)
    found, reason = library.find_flashinfer.__wrapped__()
    assert found is None
    assert reason == "FlashInfer 0.1 lacks BatchDecodeWithPagedKVCacheWrapper"
