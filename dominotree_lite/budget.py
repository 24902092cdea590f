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
Chances = Callable[[Floats], Floats]  # scores [n] -> chances of acceptance [n], which never fall where scores rise


class Costs(Protocol):
    """Seconds of a round's parts on one machine; `verify` must neither fall nor bend downwards with n."""

    def draft(self, context: int) -> float:
        """Of one draft after so many committed tokens."""

    def build(self, depths: int, lanes: int) -> float:
        """Of growing so many depths with so many parents scored in all."""

    def verify(self, nodes: int, context: int) -> Floats:
        """[nodes + 1]: of verifying 0, 1, ... nodes below the root, and committing."""


@dataclass
class Pace:
    """What a request's rounds have brought so far: tokens, and seconds by the cost model, so that no clock decides."""

    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """One more round."""
        self.tokens, self.seconds = self.tokens + tokens, self.seconds + seconds

    def rate(self, tokens: float, seconds: float) -> float:
        """Tokens a second, with such a round before the first: at the start nothing else is known."""
        return (self.tokens + tokens) / (self.seconds + seconds)


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
    larger than the node's and a place behind it. That changes no choice, as long as verification is convex. The
    `pace` of the rounds before is nothing to it.
    """

    def __init__(self, costs: Costs, chances: Chances, context: int, cap: int, pace: Pace) -> None:
        self.costs, self.chances, self.cap = costs, chances, cap
        self.draft, self.verify = costs.draft(context), costs.verify(cap, context)  # [cap + 1]
        self.depths, self.lanes, self.next_lanes = 0, 0, 1

    @property
    def children(self) -> int:
        """How many children of one parent could pay at most: the one of rank r has a chance of 1/r or less."""
        ranks = np.arange(1, self.cap + 1)
        return max(1, int(self._pay(self.chances(-np.log(ranks)), ranks - 1, self._rate(np.empty(0))).sum()))

    def grow(self, kept: Floats, newest: Floats) -> NDArray[np.bool_]:
        """Which nodes of the depth just scored, `newest` [W], are to have children; `kept` holds all scores [n]."""
        self.depths, self.lanes = self.depths + 1, self.lanes + self.next_lanes
        worth = self._worth(kept, newest)
        self.next_lanes = int(worth.sum())
        return worth

    def choose(self, tree: DraftTree) -> Choice:
        """The prefix to verify of the tree that was grown."""
        return self._choice(
            tree, best_prefix(self.chances(tree.log_probs[1:]), self.draft + self.verify[: len(tree) + 1])
        )

    def _choice(self, tree: DraftTree, nodes: int) -> Choice:
        expected = float(self.chances(tree.log_probs[1 : nodes + 1]).sum())
        seconds = self.draft + self.costs.build(self.depths, self.lanes) + float(self.verify[nodes])
        return Choice(nodes, len(tree), nodes == self.cap, self.depths, expected, seconds)

    def _worth(self, kept: Floats, newest: Floats) -> NDArray[np.bool_]:
        chances, own = self.chances(np.sort(kept)[::-1]), self.chances(newest)
        better = np.searchsorted(-chances, -own)
        return self._pay(own, better + 1, self._rate(chances))

    def _pay(self, chances: Floats, places: NDArray[np.int64], rate: float) -> NDArray[np.bool_]:
        """Whether nodes with so many better ones before them are worth their rows, at a rate that is to be had."""
        rows = np.append(np.diff(self.verify), 0.0)[np.minimum(places, self.cap)]
        return np.asarray((places < self.cap) & (chances >= rate * rows))

    def _rate(self, chances: Floats) -> float:
        """The best rate of nodes with these chances: more nodes only raise it, as building is free."""
        return float(rates(chances, self.draft + self.verify[: len(chances) + 1]).max())


class PriceRule(Rule):
    """Each second at one price for the whole request: the tokens a second it has made so far.

    What counts in the end is all tokens over all seconds. By the renewal-reward theorem the best rule for that gives
    every round the same price, whereas the best rate of each round by itself draws too few nodes where the text is easy
    and too many where it is hard. At a price, every node stands for itself: it is worth its chance, against its row
    of the pass; and building is paid for, lane by lane and depth by depth.
    """

    def __init__(self, costs: Costs, chances: Chances, context: int, cap: int, pace: Pace) -> None:
        super().__init__(costs, chances, context, cap, pace)
        start = self.draft + costs.build(1, 1) + float(self.verify[min(1, cap)])
        self.price = pace.rate(2.0, start)
        self.rows = self.price * np.append(np.diff(self.verify), 0.0)  # tokens that a row in each place has to bring
        free = costs.build(0, 0)
        self.depth, self.lane = (self.price * (costs.build(*one) - free) for one in ((1, 0), (0, 1)))

    @property
    def children(self) -> int:
        """How many children of one parent could pay at most: the one of rank r has a chance of 1/r or less."""
        best = self.chances(-np.log(np.arange(1, self.cap + 1)))
        return max(1, int((best >= self.rows[: self.cap]).sum()))

    def choose(self, tree: DraftTree) -> Choice:
        """The prefix of the tree that brings most beyond its price."""
        worth = np.append(0.0, np.cumsum(self.chances(tree.log_probs[1:])))
        beyond = worth - self.price * self.verify[: len(worth)]
        return self._choice(tree, len(tree) - int(beyond[::-1].argmax()))

    def _worth(self, kept: Floats, newest: Floats) -> NDArray[np.bool_]:
        """A level below lanes brings the sum of their chances at most, and costs a depth, a lane and a row at least."""
        chances = self.chances(newest)
        least = self.lane + self.rows[min(self.depths, self.cap)]  # a deeper node stands behind its ancestors
        worth = chances >= least
        return np.asarray(worth & (chances[worth].sum() >= least + self.depth))
