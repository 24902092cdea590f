"""The walk through a tree without looking at a value: which nodes the target accepts, and what follows them.

The rule is that of `verify.walk`. Here every node has a draw, also those the walk never visits; each is the target's
own after its path, so the law of what is emitted stays the target's. This file knows no model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..verify import Sampling
from .sweep import Swept

DrawAll = Callable[[Tensor], Tensor]  # logits [N, V] -> tokens [N]


def draws_of(sampling: Sampling, generator: torch.Generator) -> DrawAll:
    """A token a row: the likeliest, or drawn from the law of `sampling`."""
    if sampling.greedy:
        return lambda logits: logits.argmax(-1)

    def draw(logits: Tensor) -> Tensor:
        """The first arrival of independent exponential clocks with these rates has their law."""
        rates = sampling.probabilities(logits)
        times = torch.empty_like(rates).exponential_(generator=generator)
        return (rates / times).argmax(-1)

    return draw


@dataclass(frozen=True)
class Accepted:
    """The accepted path. Places of `path` behind the last accepted node hold 0."""

    path: Tensor  # [L+1] int64 nodes by depth, the root first
    count: Tensor  # [1] int64, nodes without the root
    bonus: Tensor  # [1] int64, the target's token after the last of them

    def packed(self) -> Tensor:
        """[L+3] int64: count, bonus, path."""
        return torch.cat([self.count, self.bonus, self.path])


def accept(tree: Swept, visible: Tensor, draws: Tensor) -> Accepted:
    """Follow the draws [N] through a tree; `visible` [N, N] is that of `Swept.visible`."""
    nodes = torch.arange(len(draws), device=draws.device)
    followed = (tree.tokens == draws[tree.parents]) & (tree.scores > -torch.inf) | (nodes == 0)
    accepted = ~(visible & ~followed).any(1)  # the node and all above it
    count = accepted.sum(0, keepdim=True) - 1
    path = torch.zeros(tree.horizon + 2, dtype=torch.int64, device=draws.device)
    path.scatter_(0, torch.where(accepted, tree.depths, tree.horizon + 1), nodes)  # the last place is for all others
    path = path[:-1]
    return Accepted(path, count, draws[path[count]])
