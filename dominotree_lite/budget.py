"""When to stop growing: a best-first tree, cut where a round gives most tokens a second. It knows no model.

Best-first trees are nested, so a rule only picks how many nodes of one tree to keep, namely the n with the largest

    (1 + expected accepted length of the first n nodes) / seconds of the round that verifies them.

The 1 is the bonus token. Nodes are counted without the root, here and in the costs. CaDDTree (arXiv 2606.01813) stops
at the first node that does not raise this rate; where the seconds are convex in n, that is the same n. The expected
length is the sum of the nodes' chances (DDTree, arXiv 2604.12989, Proposition 1): exp(score), or what a map fitted on
real rounds makes of the score.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .tree import DraftTree

Floats = NDArray[np.float64]
ROUNDS = 8  # after which a bound hardly moves
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
    """CaDDTree's rule for one round of a frontier builder: what was built counts nothing, as if scores were free.

    It wastes no lane: a node is given no children if none could pay for its own row of the pass, having a chance no
    larger than the node's and a place behind it. That changes no choice, as long as verification is convex.
    """

    def __init__(self, costs: Costs, chances: Chances, context: int, cap: int, horizon: int) -> None:
        self.costs, self.chances, self.cap, self.horizon = costs, chances, cap, horizon
        self.draft, self.verify = costs.draft(context), costs.verify(cap, context)  # [cap + 1]
        self.depths, self.lanes, self.next_lanes = 0, 0, 1

    @property
    def children(self) -> int:
        """How many children of one parent could pay at most: the one of rank r has a chance of 1/r or less."""
        ranks = np.arange(1, self.cap + 1)
        rate = self._least_rate(np.empty(0), np.ones(1))
        return max(1, int(self._pay(self.chances(-np.log(ranks)), ranks - 1, rate).sum()))

    def grow(self, kept: Floats, newest: Floats) -> NDArray[np.bool_]:
        """Which nodes of the depth just scored, `newest` [W], are to have children; `kept` holds all scores [n]."""
        self.depths, self.lanes = self.depths + 1, self.lanes + self.next_lanes
        worth = self._worth(self.chances(np.sort(kept)[::-1]), self.chances(newest))
        self.next_lanes = int(worth.sum())
        return worth

    def choose(self, tree: DraftTree) -> Choice:
        """The prefix to verify of the tree that was grown."""
        chances, verify = self.chances(tree.log_probs[1:]), self.verify[: len(tree) + 1]
        nodes = best_prefix(chances, self._counted() + verify)
        expected, seconds = float(chances[:nodes].sum()), self._spent() + float(verify[nodes])
        return Choice(nodes, len(tree), nodes == self.cap, self.depths, expected, seconds)

    def _counted(self) -> float:
        """Seconds before verification, as the rule counts them."""
        return self.draft

    def _spent(self) -> float:
        return self.draft + self.costs.build(self.depths, self.lanes)

    def _worth(self, chances: Floats, newest: Floats) -> NDArray[np.bool_]:
        better = np.searchsorted(-chances, -newest)
        return self._pay(newest, better + 1, self._least_rate(chances, newest))

    def _pay(self, chances: Floats, places: NDArray[np.int64], rate: float) -> NDArray[np.bool_]:
        """Whether nodes with so many better ones before them are worth their rows, at a rate that is to be had."""
        rows = np.append(np.diff(self.verify), 0.0)[np.minimum(places, self.cap)]
        return np.asarray((places < self.cap) & (chances >= rate * rows))

    def _least_rate(self, chances: Floats, newest: Floats) -> float:
        """A rate that the round will have at least: more nodes only raise it, if building is free."""
        return self._rate(self.draft, chances)

    def _rate(self, before: float, chances: Floats) -> float:
        """The best rate of nodes with these chances, after so many seconds."""
        return float(rates(chances, before + self.verify[: len(chances) + 1]).max())


class DepthRule(Rule):
    """The same with building paid for, which ends growth where even all depths to come can't pay for being scored.

    Below lanes of chances c no depth adds more than the sum of c; the r-th best of its nodes has a chance of that sum
    over r at most, which bounds the lanes that pay; and k depths more score k - 1 lanes more at least.
    """

    def _counted(self) -> float:
        return self._spent()

    def _worth(self, chances: Floats, newest: Floats) -> NDArray[np.bool_]:
        worth, left = super()._worth(chances, newest), self.horizon - self.depths
        more = self.costs.build(self.depths + left, self.lanes + int(worth.sum()) + left - 1)
        rows = self.verify[self.depths : self.depths + 2]  # a deeper node stands behind its ancestors
        price = self.draft + more - self._spent() + left * float(np.diff(rows).sum())
        return worth & (left * newest[worth].sum() > self._rate(self._spent(), chances) * price)

    def _least_rate(self, chances: Floats, newest: Floats) -> float:
        ranks, left = np.arange(1, self.cap + 1), self.horizon - self.depths
        rate = 0.0
        for _ in range(ROUNDS):  # a bound on the lanes to come gives a better one on the rate, and that on them
            lanes = max(1, int(self._pay(newest.sum() / ranks, ranks, rate).sum()))
            rate = self._rate(self.draft + self.costs.build(self.horizon, self.lanes + left * lanes), chances)
        return rate
