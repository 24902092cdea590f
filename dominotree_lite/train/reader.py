"""The target's reading of training rows, its layers compiled on a GPU: half of its time there goes to small kernels.

This file does not know drafters or losses.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..target import Reading, Target


class Reader:
    """`Target.read` with fixed layers. On a GPU the parts of each decoder layer are compiled, once for all widths.

    The parts, and not whole layers: transformers collects what the layers give by hooks on them.
    """

    def __init__(self, target: Target, layer_ids: tuple[int, ...]) -> None:
        self.target, self.layer_ids = target, layer_ids
        if target.device.type == "cuda":
            for layer in target.model.base_model.get_submodule("layers").children():
                for part in layer.children():
                    part.compile(dynamic=True)

    def __call__(self, ids: Tensor) -> Reading:
        with torch.autocast(ids.device.type, enabled=False):
            return self.target.read(ids, self.layer_ids)
