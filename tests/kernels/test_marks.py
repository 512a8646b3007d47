"""Marks and uploads: what a device is told, with a fake that is behind."""

from types import SimpleNamespace

import pytest
import torch

from blendrun.kernels.marks import Mark
from blendrun.kernels.uploads import pinned, upload


def test_a_cpu_is_past_every_mark():
    mark = Mark(torch.device("cpu"))
    assert mark.is_passed()
    mark.wait()


def test_a_mark_is_behind_what_the_stream_has(monkeypatch: pytest.MonkeyPatch):
    stream = SimpleNamespace(given=3, done=2)

    class Event:
        def record(self, of: SimpleNamespace) -> None:
            self.at = of.given

        def query(self) -> bool:
            return stream.done >= self.at

        def synchronize(self) -> None:
            stream.done = max(stream.done, self.at)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: stream)
    mark = Mark(torch.device("cuda", 0))
    stream.given = 7  # what comes later does not matter
    assert not mark.is_passed()
    mark.wait()
    assert mark.is_passed()
    assert stream.done == 3


def test_a_cpu_gets_what_it_has():
    values = torch.arange(4)
    assert upload(values, torch.device("cpu")) is values
    assert pinned(values, torch.device("cpu")) is values
