"""Fitting a drafter's scores to what was accepted: decode prompts, judge every node, fit, and check on the other half.

It decodes and fits; what stands beside a drafter, and how, is credit.py's. Prompts must not be those that a result is
reported on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .calibration import Nodes, error_interval, nodes_of
from .credit import Credit
from .decode import Round, decode
from .drafter import Drafter
from .errors import InputError
from .evaluate import Progress, seed_of
from .fits import credit
from .intervals import Interval
from .methods import Settings
from .prompts import PromptRow
from .target import Target


@dataclass(frozen=True)
class Calibration:
    """A map and what it is good for. Lengths are means a round; `fitted` and `error_after` are of halves of the
    prompts, each by the map of the other half."""

    credit: Credit
    rounds: int
    accepted: float
    promised: float
    fitted: float
    error_before: Interval
    error_after: Interval


def calibrate(
    prompts: Sequence[PromptRow],
    target: Target,
    drafter: Drafter,
    settings: Settings,
    progress: Progress | None = None,
) -> Calibration:
    """Decode with trees of `settings.budget` nodes, as `settings` says, and fit a map to all nodes' fates.

    Raises InputError for fewer than two prompts with a round of drafted nodes.
    """
    groups: list[Sequence[Round]] = []
    for prompt in prompts:
        own = replace(settings, seed=seed_of(prompt, settings.seed))
        rounds = [one for one in decode(prompt.turns, target, drafter, own).rounds if len(one.tree)]
        groups += [rounds] if rounds else []
        if progress:
            progress(prompt)
    return calibration_of(groups)


def calibration_of(groups: Sequence[Sequence[Round]]) -> Calibration:
    """The same of rounds that were recorded, a group a prompt."""
    if len(groups) < 2:
        raise InputError("a calibration is checked on prompts it was not fitted on: give two or more that draft")
    nodes = [nodes_of(rounds) for rounds in groups]
    halves = [nodes[0::2], nodes[1::2]]
    mapped = [
        by(each, credit(joined(other))) for half, other in zip(halves, halves[::-1], strict=True) for each in half
    ]
    count = sum(len(rounds) for rounds in groups)
    return Calibration(
        credit(joined(nodes)),
        count,
        sum(float(each.hit.sum()) for each in nodes) / count,
        sum(float(each.predicted.sum()) for each in nodes) / count,
        sum(float(each.predicted.sum()) for each in mapped) / count,
        error_interval(nodes),
        error_interval(mapped),
    )


def joined(groups: Sequence[Nodes]) -> Nodes:
    """The nodes of all groups as one."""
    return Nodes(*(np.concatenate([getattr(each, name) for each in groups]) for name in ("predicted", "depth", "hit")))


def by(nodes: Nodes, chances: Credit) -> Nodes:
    """The same nodes with each promise replaced by what the map makes of it."""
    with np.errstate(divide="ignore"):
        return replace(nodes, predicted=chances(np.log(nodes.predicted)))
