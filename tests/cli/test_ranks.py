"""Which ranks a command refuses."""

import pytest
import torch

from blendrun.cli.ranks import RAY, RankFlags
from blendrun.engine.settings import ExecuteSettings
from blendrun.errors import InputError
from tiny_jobs import SILENT


def test_ranks_of_ray_do_not_take_gpus(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    group = RankFlags(2, RAY).group(2, ExecuteSettings(), SILENT)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="ranks of Ray are for CPUs so far"), group:
        pass
