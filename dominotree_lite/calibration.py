"""How far a path's score can be believed: drafted nodes against what the target then accepted.

A node's score says how likely the drafter thinks the whole path down to it; it is a hit if the target takes that path.
Over many rounds, nodes that promise 30 % should be hits three times in ten. Reads trees that have been judged, in
`decode` or in `replay`; it decodes nothing and paints nothing. Beyond DominoTree (arXiv 2607.08642), which reports
over-credited scores in passing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

import numpy as np
from torch import Tensor

from .errors import InputError
from .intervals import LEVEL, Interval
from .scoring import Children, Scorer
from .tree import DraftTree

Z = 1.96  # of a 95 % interval
RESAMPLES = 1000  # each sorts all nodes
SURE = 1 - 1e-6  # a path promised for certain is taken as this, so that a logarithm of what failed exists


class Judged(Protocol):
    """A tree and what the target accepted of it: a round of `decode`, a place of `replay`."""

    @property
    def tree(self) -> DraftTree: ...

    @property
    def accepted(self) -> list[int]:
        """Nodes, root left out."""


@dataclass(frozen=True)
class Nodes:
    """Drafted nodes of many rounds, roots left out; three arrays [N]."""

    predicted: np.ndarray  # probability of the whole path, by the drafter
    depth: np.ndarray
    hit: np.ndarray  # bool: did the target accept it?

    def __len__(self) -> int:
        return len(self.hit)

    def at(self, depth: int) -> Nodes:
        """Those of one depth."""
        return self[self.depth == depth]

    def __getitem__(self, chosen: np.ndarray) -> Nodes:
        """Those of a mask [N], or of indices, in their order."""
        return Nodes(self.predicted[chosen], self.depth[chosen], self.hit[chosen])

    def tempered(self, temperature: float) -> Nodes:
        """The same nodes with each score divided by the temperature: above 1, every one promises more.

        A map that keeps the order, so a tree of fixed budget stays as it is. Raises InputError for a temperature
        that is not positive.
        """
        if not temperature > 0:
            raise InputError(f"temperature {temperature}: give a number above 0")
        return Nodes(self.predicted ** (1 / temperature), self.depth, self.hit)


@dataclass(frozen=True)
class Bin:
    """Nodes of like promise: mean predicted and realised share of hits, with the latter's Wilson interval.

    The interval takes nodes as independent; those of one round are not, so it is rather narrow.
    """

    count: int
    predicted: float
    realised: float
    low: float
    high: float


@dataclass(frozen=True)
class Lengths:
    """Accepted length a round, as the tree's scores foresaw it and as it came; two arrays [rounds]."""

    expected: np.ndarray
    realised: np.ndarray


def nodes_of(rounds: Sequence[Judged]) -> Nodes:
    """The drafted nodes of trees that were judged at temperature 0. Raises InputError for no tree."""
    if not rounds:
        raise InputError("there are no rounds to learn calibration from")
    hits = [np.isin(np.arange(1, len(one.tree) + 1), one.accepted) for one in rounds]
    return Nodes(
        predicted=np.exp(np.concatenate([one.tree.log_probs[1:] for one in rounds])),
        depth=np.concatenate([one.tree.depths[1:] for one in rounds]),
        hit=np.concatenate(hits),
    )


def lengths_of(rounds: Sequence[Judged]) -> Lengths:
    """Expected accepted length (the sum of all path probabilities) and the realised one."""
    expected = [one.tree.expected_accepted() for one in rounds]
    return Lengths(np.array(expected), np.array([len(one.accepted) for one in rounds], float))


def reliability(predicted: np.ndarray, hit: np.ndarray, bins: int = 10) -> list[Bin]:
    """Bins of equal count in order of `predicted` [N], against `hit` [N]; fewer where nodes are fewer than bins.

    Equal counts, because most nodes of a tree promise little. Raises InputError for no node or no bin.
    """
    _check(predicted, bins)
    order = np.argsort(predicted, kind="stable")
    return [_bin(predicted[part], hit[part]) for part in np.array_split(order, min(bins, len(order)))]


def reliability_by_promise(predicted: np.ndarray, hit: np.ndarray, bins: int = 10) -> list[Bin]:
    """As `reliability`, but each bin promises about the same number of hits; a bin that would be empty is left out.

    Of a tree's nodes a tenth promises most of its accepted length, so bins of equal count see that tenth as one.
    Raises InputError for no node or no bin, and where nothing is promised.
    """
    _check(predicted, bins)
    order = np.argsort(predicted, kind="stable")
    promised = np.cumsum(predicted[order])
    if not promised[-1] > 0:
        raise InputError("no node promises anything: there is no promise to share out among bins")
    number = np.maximum(np.ceil(promised / promised[-1] * bins - 1e-9), 1)  # of each node's bin
    parts = np.split(order, np.flatnonzero(np.diff(number)) + 1)
    return [_bin(predicted[part], hit[part]) for part in parts]


def _check(predicted: np.ndarray, bins: int) -> None:
    if bins < 1 or not len(predicted):
        raise InputError(f"reliability of {len(predicted)} nodes in {bins} bins: give one or more of each")


def _bin(predicted: np.ndarray, hit: np.ndarray) -> Bin:
    count, share = len(hit), float(hit.mean())
    centre = (share + Z**2 / (2 * count)) / (1 + Z**2 / count)
    half = Z * np.sqrt(share * (1 - share) / count + Z**2 / (4 * count**2)) / (1 + Z**2 / count)
    return Bin(count, float(predicted.mean()), share, float(max(0.0, centre - half)), float(min(1.0, centre + half)))


def calibration_error(bins: Sequence[Bin]) -> float:
    """Mean distance of predicted and realised over bins, weighted by count (expected calibration error)."""
    total = sum(each.count for each in bins)
    return sum(each.count * abs(each.predicted - each.realised) for each in bins) / total


def error_interval(groups: Sequence[Nodes], bins: int = 10, seed: int = 0) -> Interval:
    """The calibration error over bins of equal promise of all nodes, with an interval over groups [prompts].

    Groups are resampled with replacement. A resample's error leans upward, as an error of fewer different prompts
    does; so only the spread of the resamples is used, around the error itself. Raises InputError for no node.
    """
    if not groups:
        raise InputError("there are no nodes to learn a calibration error from")

    def error(chosen: Sequence[int] | np.ndarray) -> float:
        predicted = np.concatenate([groups[i].predicted for i in chosen])
        hit = np.concatenate([groups[i].hit for i in chosen])
        return calibration_error(reliability_by_promise(predicted, hit, bins))

    chance, value = np.random.default_rng(seed), error(range(len(groups)))
    spread = np.array([error(chance.integers(len(groups), size=len(groups))) for _ in range(RESAMPLES)])
    low, high = np.quantile(spread - spread.mean(), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, float(max(0.0, value + low)), float(value + high))


# --- Side by side --------------------------------------------------------------------------------------------


def ranks_of(rounds: Sequence[Judged]) -> np.ndarray:
    """Each node's place among its siblings, 0 for the best; [N] in the order of `nodes_of`."""
    ranks = [
        one.tree.children(int(one.tree.parents[n])).index(n) for one in rounds for n in range(1, len(one.tree) + 1)
    ]
    return np.array(ranks, int)


@dataclass(frozen=True)
class Slice:
    """Nodes of one kind, over all prompts: how many, mean promise, share of hits, and the calibration error."""

    label: str
    count: int
    predicted: float
    realised: float
    error: Interval


def sliced(kinds: Mapping[str, Sequence[Nodes]], bins: int = 10) -> list[Slice]:
    """A row for each kind (a suite, a temperature, a number of candidates) of its nodes, grouped by prompt.

    A kind without a node that promises anything is left out.
    """
    rows = []
    for label, groups in kinds.items():
        some = [each for each in groups if each.predicted.sum() > 0]
        if some:
            predicted, hit = (np.concatenate([getattr(each, name) for each in some]) for name in ("predicted", "hit"))
            error = error_interval(some, bins)
            rows.append(Slice(label, len(hit), float(predicted.mean()), float(hit.mean()), error))
    return rows


def split(groups: Sequence[Nodes], labels: Sequence[np.ndarray]) -> dict[str, list[Nodes]]:
    """The nodes of each prompt [N] apart by their labels [N] (depths, ranks), in ascending order of labels."""
    values = np.unique(np.concatenate(labels))
    return {str(v): [each[own == v] for each, own in zip(groups, labels, strict=True)] for v in values}


# --- A scorer that is right ----------------------------------------------------------------------------------


def drawn(tree: DraftTree, chance: float) -> list[int]:
    """The nodes that would be accepted if the text followed the tree's own law; `chance` is uniform in [0, 1).

    Each node owns an interval as long as its path's probability, inside its parent's and apart from its
    siblings'. Those that the number falls into are one path from the root, or none.
    """
    probability, size = np.exp(tree.log_probs).tolist(), len(tree) + 1
    start, free, end = [0.0] * size, [0.0] * size, [1.0] * size
    for node, parent in enumerate(tree.parents[1:].tolist(), start=1):
        start[node] = free[node] = free[parent]
        free[parent] += probability[node]
        end[node] = min(free[parent], end[parent])  # scores are rounded: siblings may promise a little too much
    return [node for node in range(1, size) if start[node] <= chance < end[node]]


# --- One scalar ----------------------------------------------------------------------------------------------


def log_loss(nodes: Nodes) -> float:
    """Mean surprise at what came of the nodes, in nats: 0 for promises that are certain and right."""
    sure = np.minimum(nodes.predicted, SURE)
    with np.errstate(divide="ignore"):  # a path without probability that was taken: infinite, and rightly so
        return float(-np.where(nodes.hit, np.log(sure), np.log1p(-sure)).mean())


def fit_temperature(nodes: Nodes) -> float:
    """The temperature from 1/20 to 20 that makes `log_loss` of the tempered nodes least, to a relative 1e-6.

    The loss is convex in 1/temperature, so its slope is followed by bisection. Raises InputError where all nodes
    were hits or none was: then the loss has no least.
    """
    if nodes.hit.all() or not nodes.hit.any():
        raise InputError("a temperature needs nodes that were accepted and nodes that were not")
    scores = np.log(np.clip(nodes.predicted, np.finfo(float).tiny, SURE))
    low, high = 1 / 20, 20.0
    while high / low > 1 + 1e-6:
        middle = np.sqrt(low * high)
        missed = scores[~nodes.hit]
        with np.errstate(over="ignore"):  # what can't be: its share of the slope is 0
            slope = (missed / np.expm1(-middle * missed)).sum() - scores[nodes.hit].sum()
        low, high = (middle, high) if slope < 0 else (low, middle)
    return float(1 / np.sqrt(low * high))


class TemperedScorer:
    """Another scorer with a temperature inside: each place's probabilities to the power 1/T, normalised again.

    Unlike `Nodes.tempered` this may change the order of nodes, so the tree. It normalises over what the other
    scorer hands out, so that one should have no child cap; it hands out `child_cap` children itself. Raises
    InputError for a temperature that is not positive.
    """

    def __init__(self, inner: Scorer, temperature: float, child_cap: int) -> None:
        if not temperature > 0:
            raise InputError(f"temperature {temperature}: give a number above 0")
        self.inner, self.temperature, self.child_cap = inner, temperature, child_cap
        self.horizon = inner.horizon

    def root(self) -> Tensor:
        return self.inner.root()

    def children(self, depth: int, states: Tensor) -> Children:
        found = self.inner.children(depth, states)
        log_probs = (found.log_probs / self.temperature).log_softmax(-1).nan_to_num(nan=-inf, neginf=-inf)
        return Children(found.tokens[:, : self.child_cap], log_probs[:, : self.child_cap])

    def advance(self, states: Tensor, tokens: Tensor) -> Tensor:
        return self.inner.advance(states, tokens)
