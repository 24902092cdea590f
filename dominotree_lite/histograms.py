"""Rounds folded into small histograms: how many nodes were accepted, and how deep was drafted. Knows no models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .decode import Round


def accepted_nodes(rounds: Sequence[Round]) -> list[int]:
    """[n] rounds that accepted n nodes, as the target walked, before anything was trimmed."""
    return histogram(len(one.accepted) for one in rounds)


def deepest_nodes(rounds: Sequence[Round]) -> list[int]:
    """[d] rounds whose deepest drafted node lies at depth d; 0 where nothing was drafted."""
    return histogram(int(one.tree.depths.max()) for one in rounds)


def histogram(values: Iterable[int]) -> list[int]:
    """[n] how often n occurs; as long as the largest value needs."""
    counts: list[int] = []
    for value in values:
        counts += [0] * (value + 1 - len(counts))
        counts[value] += 1
    return counts
