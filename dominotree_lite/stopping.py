"""How much a stopping rule could win: trees that were grown to a cap and judged, cut again in other places.

A best-first tree holds those of all smaller budgets, so one record answers for every rule, and for oracles that know
the accepted path. Seconds come from a cost model, with building as if nothing beyond the cut had been grown; that
flatters all rules alike. This file decodes nothing and measures nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from .budget import Chances, Costs, Floats, best_prefix
from .calibration import Judged
from .decode import Round
from .tree import DraftTree

Policy = Callable[[Judged, Floats], int]  # a judged tree, the round's seconds by nodes [n + 1] -> nodes to keep


@dataclass(frozen=True)
class Stopped:
    """What a policy gives: sums over rounds, and their ratios."""

    rounds: int
    tokens: int  # accepted nodes and bonus tokens
    nodes: int  # that were verified
    seconds: float

    @property
    def tau(self) -> float:
        """Tokens a round; 0 without one."""
        return self.tokens / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """By the cost model; 0 without a round."""
        return self.tokens / self.seconds if self.rounds else 0.0


def round_seconds(tree: DraftTree, costs: Costs, context: int) -> Floats:
    """[n + 1]: seconds of the round with the tree's first 0, 1, ... nodes."""
    depths = np.maximum.accumulate(tree.depths)  # of the deepest node so far
    build = [costs.build(int(depth), node + 1 if depth else 0) for node, depth in enumerate(depths)]
    seconds: Floats = costs.draft(context) + np.array(build) + costs.verify(len(tree), context)
    return seconds


# --- Policies ------------------------------------------------------------------------------------------------


def fixed(budget: int) -> Policy:
    """Always so many nodes."""
    return lambda one, seconds: min(budget, len(one.tree))


def by_chances(chances: Chances) -> Policy:
    """The rule of budget.py: the prefix that promises most tokens a second."""
    return lambda one, seconds: best_prefix(chances(one.tree.log_probs[1:]), seconds)


def oracle_path(one: Judged, seconds: Floats) -> int:
    """The smallest prefix that holds the whole accepted path."""
    return max(one.accepted, default=0)


def oracle_rate(one: Judged, seconds: Floats) -> int:
    """The prefix with most tokens a second in this round, by one who knows the path and need not take all of it."""
    ends = [0, *one.accepted]  # nothing is won between them
    return max(ends, key=lambda end: (1 + ends.index(end)) / seconds[end])


# --- Adding up -----------------------------------------------------------------------------------------------


def on_rounds(rounds: Sequence[Round], costs: Costs, policy: Policy) -> Stopped:
    """The policy on rounds as they were recorded: each keeps its place, though a shorter path would have moved it."""
    return _sum(_cut(one, one.start, costs, policy) for one in rounds)


def on_places(places: Sequence[Judged], first: int, costs: Costs, policy: Policy) -> Stopped:
    """The policy as decoding would go, hop by hop, over trees of every place (`replay.places` with every 1).

    `first` is the number of tokens before the first place.
    """
    cuts, at = [], 0
    while at < len(places):
        cuts.append(_cut(places[at], first + at, costs, policy))
        at += cuts[-1].tokens
    return _sum(cuts)


def _cut(one: Judged, context: int, costs: Costs, policy: Policy) -> Stopped:
    seconds = round_seconds(one.tree, costs, context)
    nodes = policy(one, seconds)
    return Stopped(1, 1 + sum(node <= nodes for node in one.accepted), nodes, float(seconds[nodes]))


def _sum(cuts: Iterable[Stopped]) -> Stopped:
    whole = list(cuts)
    return Stopped(
        sum(one.rounds for one in whole),
        sum(one.tokens for one in whole),
        sum(one.nodes for one in whole),
        sum(one.seconds for one in whole),
    )
