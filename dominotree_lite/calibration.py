"""How far a path's score can be believed: drafted nodes against what the target then accepted.

A node's score says how likely the drafter thinks the whole path down to it; it is a hit if the target takes that path.
Over many rounds, nodes that promise 30 % should be hits three times in ten. Reads rounds that have been decoded; it
decodes nothing and draws nothing. Beyond DominoTree (arXiv 2607.08642), which reports over-credited scores in passing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .decode import Round
from .errors import InputError

Z = 1.96  # of a 95 % interval


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
        chosen = self.depth == depth
        return Nodes(self.predicted[chosen], self.depth[chosen], self.hit[chosen])


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


def nodes_of(rounds: Sequence[Round]) -> Nodes:
    """The drafted nodes of rounds that were decoded at temperature 0."""
    if not rounds:
        raise InputError("there are no rounds to learn calibration from")
    hits = [np.isin(np.arange(1, len(one.tree) + 1), one.accepted) for one in rounds]
    return Nodes(
        predicted=np.exp(np.concatenate([one.tree.log_probs[1:] for one in rounds])),
        depth=np.concatenate([one.tree.depths[1:] for one in rounds]),
        hit=np.concatenate(hits),
    )


def lengths_of(rounds: Sequence[Round]) -> Lengths:
    """Expected accepted length (the sum of all path probabilities) and the realised one."""
    expected = [one.tree.expected_accepted() for one in rounds]
    return Lengths(np.array(expected), np.array([len(one.accepted) for one in rounds], float))


def reliability(predicted: np.ndarray, hit: np.ndarray, bins: int = 10) -> list[Bin]:
    """Bins of equal count in order of `predicted` [N], against `hit` [N]; fewer where nodes are fewer than bins.

    Equal counts, because most nodes of a tree promise little. Raises InputError for no node or no bin.
    """
    if bins < 1 or not len(predicted):
        raise InputError(f"reliability of {len(predicted)} nodes in {bins} bins: give one or more of each")
    order = np.argsort(predicted, kind="stable")
    return [_bin(predicted[part], hit[part]) for part in np.array_split(order, min(bins, len(order)))]


def _bin(predicted: np.ndarray, hit: np.ndarray) -> Bin:
    count, share = len(hit), float(hit.mean())
    centre = (share + Z**2 / (2 * count)) / (1 + Z**2 / count)
    half = Z * np.sqrt(share * (1 - share) / count + Z**2 / (4 * count**2)) / (1 + Z**2 / count)
    return Bin(count, float(predicted.mean()), share, float(max(0.0, centre - half)), float(min(1.0, centre + half)))


def calibration_error(bins: Sequence[Bin]) -> float:
    """Mean distance of predicted and realised over bins, weighted by count (expected calibration error)."""
    total = sum(each.count for each in bins)
    return sum(each.count * abs(each.predicted - each.realised) for each in bins) / total
