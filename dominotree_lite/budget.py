"""When to stop growing: a best-first tree, cut where a round gives most tokens a second. It knows no model.

Best-first trees are nested, so a rule only picks how many nodes of one tree to keep, namely the n with the largest

    (1 + expected accepted length of the first n nodes) / seconds of the round that verifies them.

The 1 is the bonus token. Nodes are counted without the root, here and in the costs. CaDDTree (arXiv 2606.01813) stops
at the first node that does not raise this rate; where the seconds are convex in n, that is the same n. It counts
drafting and verifying; here a round is all of it, building too. The expected length is the sum of the nodes' chances
(DDTree, arXiv 2604.12989, Proposition 1): exp(score), or what a map fitted on real rounds makes of the score.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .tree import DraftTree

Floats = NDArray[np.float64]
Chances = Callable[[Floats], Floats]  # scores [n] -> chances of acceptance [n], which never fall where scores rise


class Costs(Protocol):
    """Seconds of a round's parts on one machine; `verify` must neither fall nor bend downwards with n."""

    def draft(self, context: int) -> float:
        """Of one draft after so many committed tokens."""

    def build(self, depths: int, lanes: int) -> float:
        """Of growing so many depths with so many parents scored in all."""

    def verify(self, nodes: int, context: int) -> Floats:
        """[nodes + 1]: of verifying 0, 1, ... nodes below the root, and committing."""


@dataclass(frozen=True)
class Choice:
    """Where a rule ended a round's tree, and what it foresaw; beside it in the round stands what came."""

    nodes: int  # the budget that was chosen
    grown: int  # nodes of the tree it was chosen from
    capped: bool  # the cap was kept whole: more might have paid
    depths: int  # that were scored
    expected: float  # accepted length
    seconds: float  # of the round


def rates(chances: Floats, seconds: Floats) -> Floats:
    """[n + 1]: expected tokens a second with the first 0, 1, ... nodes of chances [n] and seconds [n + 1]."""
    return (1 + np.concatenate([[0.0], np.cumsum(chances)])) / seconds


def best_prefix(chances: Floats, seconds: Floats) -> int:
    """How many nodes give the largest of `rates`; the most of several, since they cost nothing then."""
    return len(chances) - int(rates(chances, seconds)[::-1].argmax())


class Rule:
    """The rule for one round of a frontier builder, told of each depth as it is scored.

    It never wastes a lane: a node whose chance can't pay for its own row in the pass is given no children, since
    theirs are smaller still. That changes no choice, as long as the costs are convex.
    """

    def __init__(self, costs: Costs, chances: Chances, context: int, cap: int, horizon: int) -> None:
        self.costs, self.chances, self.cap, self.horizon = costs, chances, cap, horizon
        self.draft, self.verify = costs.draft(context), costs.verify(cap, context)  # [cap + 1]
        self.row = self.verify[1] - self.verify[0] if cap else 0.0  # the cheapest a node can be
        self.most = self.draft + costs.build(horizon, horizon * max(cap, 1))  # before verification, at worst
        self.depths, self.lanes, self.next_lanes = 0, 0, 1

    def grow(self, kept: Floats, newest: Floats) -> NDArray[np.bool_]:
        """Which nodes of the depth just scored, `newest` [W], are to have children; `kept` holds all scores [n]."""
        self.depths, self.lanes = self.depths + 1, self.lanes + self.next_lanes
        chances = self.chances(np.sort(kept)[::-1])
        worth = self._worth(chances, self.chances(newest))
        self.next_lanes = int(worth.sum())
        return worth

    def choose(self, tree: DraftTree) -> Choice:
        """The prefix to verify of the tree that was grown."""
        chances, seconds = self.chances(tree.log_probs[1:]), self._spent() + self.verify[: len(tree) + 1]
        nodes = best_prefix(chances, seconds)
        expected = float(chances[:nodes].sum())
        return Choice(nodes, len(tree), nodes == self.cap, self.depths, expected, float(seconds[nodes]))

    def _spent(self) -> float:
        return self.draft + self.costs.build(self.depths, self.lanes)

    def _worth(self, chances: Floats, newest: Floats) -> NDArray[np.bool_]:
        worst = rates(chances, self.most + self.verify[: len(chances) + 1]).max()  # the final rate is no lower
        return np.asarray(newest >= worst * self.row)


class DepthRule(Rule):
    """The same, and it ends growth where even the next depths together can't pay for being scored.

    Below lanes of chances c no depth adds more than the sum of c, and k depths score k - 1 lanes more at least.
    """

    def _worth(self, chances: Floats, newest: Floats) -> NDArray[np.bool_]:
        worth, left = super()._worth(chances, newest), self.horizon - self.depths
        rate = rates(chances, self._spent() + self.verify[: len(chances) + 1]).max()
        more = self.costs.build(self.depths + left, self.lanes + int(worth.sum()) + left - 1)
        price = self.draft + more - self._spent() + left * self.row
        return worth & (left * newest[worth].sum() > rate * price)
