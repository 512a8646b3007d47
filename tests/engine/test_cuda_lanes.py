"""Streams of a GPU, with a fake of it: how SMs are divided, and what is done where they are not."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from blendrun.engine.cuda_lanes import CudaLaneMaker, CudaLanes

DEVICE = torch.device("cuda", 0)


class FakeStream:
    def __init__(self, device: Any = None, name: str = "plain") -> None:
        self.device, self.name, self.calls = device, name, []

    def wait_stream(self, other: "FakeStream") -> None:
        self.calls.append(("stream", other.name))

    def wait_event(self, event: str) -> None:
        self.calls.append(("event", event))

    def record_event(self) -> str:
        return f"of {self.name}"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeStream:
    """132 SMs; the caller's stream."""
    caller = FakeStream(name="caller")
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: caller)
    properties = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: properties)
    return caller


def with_green_contexts(monkeypatch: pytest.MonkeyPatch, split: Any) -> None:
    package, module = ModuleType("flashinfer"), ModuleType("flashinfer.green_ctx")
    module.split_device_green_ctx_by_sm_count = split
    monkeypatch.setitem(sys.modules, "flashinfer", package)
    monkeypatch.setitem(sys.modules, "flashinfer.green_ctx", module)


@pytest.mark.usefixtures("gpu")
def test_decode_attention_gets_its_share_of_the_sms_and_the_rest_is_for_products(
    monkeypatch: pytest.MonkeyPatch,
):
    asked = []

    def split(device: torch.device, sm_counts: list[int]) -> Any:
        asked.append((device, sm_counts))
        return [FakeStream(name="first"), FakeStream(name="rest")], []

    with_green_contexts(monkeypatch, split)
    lanes = CudaLaneMaker(DEVICE)
    assert lanes.divides()
    made = lanes(0.25)
    assert lanes(0.25) is made
    assert asked == [(DEVICE, [33])]
    assert made.mark("memory") == "of first"
    assert made.mark("compute") == "of rest"


@pytest.mark.usefixtures("gpu")
def test_without_a_share_nothing_is_divided(monkeypatch: pytest.MonkeyPatch):
    with_green_contexts(monkeypatch, lambda *_: pytest.fail("asked for"))
    assert CudaLaneMaker(DEVICE)(0.0).mark("memory") == "of plain"


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("error", [ImportError("no cuda-python"), RuntimeError("error code=914")])
def test_where_sms_cannot_be_divided_all_streams_have_all_and_it_says_why(
    error: Exception, monkeypatch: pytest.MonkeyPatch
):
    def split(*_: Any) -> Any:
        raise error

    with_green_contexts(monkeypatch, split)
    lanes = CudaLaneMaker(DEVICE)
    assert lanes(0.25).mark("memory") == "of plain"
    assert not lanes.divides()
    assert str(error) in lanes.why_whole


def test_lanes_begin_after_the_caller_and_end_before_it_goes_on(gpu: FakeStream):
    streams = {name: FakeStream(name=name) for name in ("compute", "memory")}
    lanes = CudaLanes(streams)
    lanes.begin()
    assert all(stream.calls == [("stream", "caller")] for stream in streams.values())
    lanes.wait("memory", lanes.mark("compute"))
    assert streams["memory"].calls[-1] == ("event", "of compute")
    lanes.end()
    assert gpu.calls == [("stream", "compute"), ("stream", "memory")]


def test_what_another_lane_made_is_kept_until_work_is_through(
    gpu: FakeStream, monkeypatch: pytest.MonkeyPatch
):
    del gpu
    streams, current, kept = {"memory": FakeStream(name="memory")}, [], []

    class On:
        def __init__(self, stream: FakeStream) -> None:
            self._stream = stream

        def __enter__(self) -> None:
            current.append(self._stream)

        def __exit__(self, *_: Any) -> None:
            current.pop()

    monkeypatch.setattr(torch.cuda, "stream", On)
    tensor = SimpleNamespace(record_stream=kept.append)
    ran = []
    CudaLanes(streams).run("memory", lambda: ran.append(current[-1].name), [tensor])
    assert ran == ["memory"]
    assert kept == [streams["memory"]]
