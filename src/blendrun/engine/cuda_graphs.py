"""Graphs of CUDA, as torch captures them. Has never run on a device."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class CudaGraph:
    """See `engine.graphs.Graph`."""

    def __init__(self, graph: torch.cuda.CUDAGraph, made: Tensor) -> None:
        self._graph, self.made = graph, made

    def replay(self) -> None:
        self._graph.replay()


class CudaGraphMaker:
    """See `engine.graphs.GraphMaker`. All graphs have one pool of memory: one runs at a time."""

    def __init__(self) -> None:
        self._pool: Any = None

    def __call__(self, work: Callable[[], Tensor]) -> CudaGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            made = work()
        if self._pool is None:
            self._pool = graph.pool()
        return CudaGraph(graph, made)
