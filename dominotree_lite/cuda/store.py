"""Keys and values at fixed places: a cache that a captured forward can write to and read from.

The rows of committed tokens stand in front, those of the last pass behind them. It knows no trees.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from ..drafter import KeyValue

SMALLEST = 256


def bucket(tokens: int) -> int:
    """The least number of places offered for so many tokens: in steps of a 16th, so that few graphs serve all."""
    step = max(SMALLEST, (1 << (tokens - 1).bit_length()) // 16)
    return -(-tokens // step) * step


class Store(Cache):
    """Keys and values of all layers, `rows` [layers, 2, kv_heads, size, head_dim].

    As a cache of transformers it writes a pass's rows at `places` [N] and shows the first `seen` places; which of
    these count is for the mask to say. Both are set before a pass.
    """

    def __init__(self, like: list[KeyValue], size: int) -> None:
        super().__init__(layers=[])
        key = like[0][0]  # [1, kv_heads, S, head_dim]
        self.rows = key.new_zeros(len(like), 2, key.shape[1], size, key.shape[3])
        self.places, self.seen = torch.zeros(0, dtype=torch.int64, device=key.device), size

    @property
    def size(self) -> int:
        """Places of each layer."""
        return self.rows.shape[3]

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> KeyValue:
        """What a layer's attention calls: store the new rows, return all that can be seen."""
        self.write(layer_idx, self.places, (key_states, value_states))
        return self.shown(layer_idx, self.seen)

    def write(self, layer: int, places: Tensor, new: KeyValue) -> None:
        """Put keys and values [1, kv_heads, N, head_dim] at places [N]."""
        for rows, states in zip(self.rows[layer], new, strict=True):
            rows.index_copy_(1, places, states[0])

    def shown(self, layer: int, seen: int) -> KeyValue:
        """The first `seen` keys and values [1, kv_heads, seen, head_dim] of a layer."""
        keys, values = self.rows[layer, :, None, :, :seen]
        return keys, values

    def move(self, sources: Tensor, places: Tensor) -> None:
        """Copy the rows of all layers from places `sources` [n] to `places` [n], as if all at once."""
        self.rows.index_copy_(3, places, self.rows.index_select(3, sources))

    def fill(self, layers: list[KeyValue]) -> None:
        """Put these keys and values at the first places."""
        for rows, both in zip(self.rows, layers, strict=True):
            for kept, states in zip(rows, both, strict=True):
                kept[:, : states.shape[2]] = states[0]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0: positions and masks are always given."""
        return 0
