"""The best `budget` nodes by sweeping the depths with a fixed number of lanes: every shape is known beforehand.

`build.frontier` keeps only the lanes that are among the best nodes so far, so their number depends on values. Here
each depth keeps its own best `budget` children as lanes, which is never too few: a node of the tree has fewer than
`budget` nodes before it, at its own depth as anywhere. The tree is picked from all lanes at the end. Nothing is
looked at on the way, so a sweep can be captured as a graph, and the tree it leaves stays on the device for whoever
verifies it there. This file does not know graphs, models or how lanes are scored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..scoring import Scorer, top
from ..tree import DraftTree


@dataclass(frozen=True)
class Chosen:
    """The best children of a depth: the next lanes."""

    lanes: Tensor  # [W] int64, of the parents, among the lanes before
    tokens: Tensor  # [W] int64
    scores: Tensor  # [W] float64, of the paths; minus infinity where there was no further child


class Lanes(Protocol):
    """The paths of one depth, side by side, and how they grow by a token."""

    @property
    def horizon(self) -> int:
        """L, the deepest depth there is."""

    def start(self, anchor: Tensor) -> None:
        """One lane, the path that holds only the anchor [1]."""

    def choose(self, depth: int, scores: Tensor, count: int) -> Chosen:
        """The best `count` children at `depth` (all, if there are fewer) of the lanes, which have these scores [W]."""

    def advance(self, chosen: Chosen) -> None:
        """Make the chosen children the lanes."""


class ScorerLanes:
    """Lanes of any scorer of the core. Equal scores keep the order of `build`: their paths of ranks, from the root."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer, self.horizon = scorer, scorer.horizon

    def start(self, anchor: Tensor) -> None:
        self.states = self.scorer.root()  # the scorer was made with the anchor

    def choose(self, depth: int, scores: Tensor, count: int) -> Chosen:
        children = self.scorer.children(depth, self.states)  # [W, C]
        paths = (scores[:, None] + children.log_probs).flatten()
        best = top(paths, count).sort().values
        return Chosen(best // children.tokens.shape[1], children.tokens.flatten()[best], paths[best])

    def advance(self, chosen: Chosen) -> None:
        self.states = self.scorer.advance(self.states[chosen.lanes], chosen.tokens)


@dataclass(frozen=True)
class Swept:
    """A tree of at most B nodes on the device, best first, the root at 0. Places that nothing filled come last.

    Their score is minus infinity, and their parent is any node before them.
    """

    tokens: Tensor  # [B+1] int64
    parents: Tensor  # [B+1] int64; the root's is itself
    depths: Tensor  # [B+1] int64
    scores: Tensor  # [B+1] float64
    horizon: int  # no node lies deeper

    def packed(self) -> Tensor:
        """[4, B+1] int64, the scores bit by bit: what goes to the host in one copy."""
        return torch.stack([self.tokens, self.parents, self.depths, self.scores.view(torch.int64)])

    def visible(self) -> Tensor:
        """[B+1, B+1] bool: every node sees itself and the nodes above it."""
        size = len(self.tokens)
        nodes = torch.arange(size, device=self.parents.device)
        upwards = (self.parents[:, None] == nodes) | (nodes[:, None] == nodes)  # one step or none
        seen = upwards.float()
        steps = 1
        while steps < min(size - 1, self.horizon):
            seen, steps = (seen @ seen).clamp_(max=1), 2 * steps
        return seen > 0


def sweep(lanes: Lanes, anchor: Tensor, budget: int) -> Swept:
    """The tree `build.heap` gives, with static shapes; `anchor` [1] is on the device. The budget is 1 or more."""
    device = anchor.device
    scores = torch.zeros(1, dtype=torch.float64, device=device)
    root = torch.zeros(1, dtype=torch.int64, device=device)
    tokens, parents, depths, ledger = [anchor], [root], [root], [scores]
    first, size = 0, 1  # where the lanes start in the ledger, and its length
    lanes.start(anchor)
    for depth in range(1, lanes.horizon + 1):
        chosen = lanes.choose(depth, scores, budget)
        tokens.append(chosen.tokens)
        parents.append(chosen.lanes + first)
        depths.append(torch.full_like(chosen.tokens, depth))
        ledger.append(chosen.scores)
        scores, first, size = chosen.scores, size, size + len(chosen.tokens)
        if depth < lanes.horizon:
            lanes.advance(chosen)
    return _best(torch.cat(tokens), torch.cat(parents), torch.cat(depths), torch.cat(ledger), budget, lanes.horizon)


def _best(tokens: Tensor, parents: Tensor, depths: Tensor, scores: Tensor, budget: int, horizon: int) -> Swept:
    """The tree of a ledger whose parents come before their children: its root and the best `budget` entries."""
    kept = scores.sort(descending=True, stable=True).indices[: budget + 1]  # the root scores 0 and stands first
    place = torch.zeros_like(tokens)
    place.index_copy_(0, kept, torch.arange(len(kept), device=kept.device))
    return Swept(tokens[kept], place[parents[kept]], depths[kept], scores[kept], horizon)


def tree_of(packed: Tensor) -> DraftTree:
    """The tree of `Swept.packed` [4, B+1] on the host."""
    tokens, parents, depths = packed[:3].numpy()
    scores = packed[3].view(torch.float64).numpy()
    count = int((scores > -torch.inf).sum())
    parents = parents[:count].copy()
    parents[0] = -1
    return DraftTree(tokens[:count], parents, depths[:count], scores[:count])
