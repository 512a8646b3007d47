"""The torch engine of ranks, of which one stalls in every step, as on a device that is ill."""

import time
from typing import Any

from blendrun.engine.torch_backend import TorchBackend
from blendrun.launch import torch_engine
from blendrun.launch.worker import RankJob

ENGINE = "tiny_slow_rank:open_engine"
SLOW = 1
STALL_S = 0.25  # a step takes milliseconds


def open_engine(job: RankJob) -> torch_engine.TorchEngine:
    if job.rank == SLOW:
        run = TorchBackend.run

        def stalled(backend: TorchBackend, batch: Any) -> Any:
            time.sleep(STALL_S)
            return run(backend, batch)

        TorchBackend.run = stalled  # type: ignore[method-assign]
    return torch_engine.open_engine(job)
