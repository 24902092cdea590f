"""The target's reading of training rows, as CUDA graphs on a GPU: its thousand small kernels wait for Python else.

This file does not know drafters or losses.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..target import Reading, Target

WARM_UP = 2  # readings before a capture, in which libraries allocate what they need


class Reader:
    """`Target.read` with fixed layers. On a GPU a graph is captured for every shape of rows that occurs.

    What it returns there holds until it is called again: the graph writes into the same memory each time.
    """

    def __init__(self, target: Target, layer_ids: tuple[int, ...]) -> None:
        self.target, self.layer_ids = target, layer_ids
        self._graphs: dict[torch.Size, _Graph] = {}

    def __call__(self, ids: Tensor) -> Reading:
        if ids.device.type != "cuda":
            return self.target.read(ids, self.layer_ids)
        if ids.shape not in self._graphs:
            self._graphs[ids.shape] = _Graph(self, ids, next(iter(self._graphs.values()), None))
        return self._graphs[ids.shape].replay(ids)


class _Graph:
    """One shape's graph, its input and its output. All share the memory of the first."""

    def __init__(self, reader: Reader, ids: Tensor, first: _Graph | None) -> None:
        self.ids, self.graph = ids.clone(), torch.cuda.CUDAGraph()
        side = torch.cuda.Stream(ids.device)
        with torch.cuda.device(ids.device), torch.autocast("cuda", enabled=False):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UP):
                    reader.target.read(self.ids, reader.layer_ids)
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.graph(self.graph, pool=first.graph.pool() if first else None):
                self.reading = reader.target.read(self.ids, reader.layer_ids)

    def replay(self, ids: Tensor) -> Reading:
        self.ids.copy_(ids)
        self.graph.replay()
        return self.reading
