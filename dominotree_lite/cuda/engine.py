"""The graph engine: `decode`'s requests with rounds as captured graphs and one wait of the host a round.

The next round is asked for before this one's tree is looked at, so the host's own work hides behind the device's.
On a CPU the same stages run uncaptured. What can't be captured is decoded by the eager engine, with one line in the
log. Trees, tokens and records are the eager engine's own, up to rounding; draws at temperatures above 0 are others of
the same law.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from ..decode import Request, Round, StageSeconds
from ..drafter import Drafter
from ..methods import METHODS, Settings
from ..target import Target
from .builders import LanesOf
from .lanes import lanes_for, plain_lanes, served_by_kernels
from .stages import Marks, Stages, usable
from .sweep import tree_of

logger = logging.getLogger(__name__)


class GraphRequest(Request):
    """One prompt on its way, its rounds on the device."""

    def _prefill(self, ids: list[int], limit: int) -> Tensor:
        logits = super()._prefill(ids, limit)
        self.stages = stages_of(self.target, self.drafter, _what_matters(self.settings))
        if self.stages is not None and limit > 1:
            self._prepare(self.stages, len(ids) + limit - 1)
        return logits

    def _prepare(self, stages: Stages, longest: int) -> None:
        """Record what is needed; without kernels where these fail, and not at all where that fails."""
        for lanes_of in (None, *_plainer(stages)):
            if lanes_of:
                stages.use(lanes_of)
            try:
                stages.prepare(self.context, self.features, longest)
                return
            except Exception as error:  # a driver, a compiler and a graph each raise their own
                if self.target.device.type != "cuda":
                    raise
                _explain(self.settings, f"{type(error).__name__} {error}".partition("\n")[0])
        self.stages = None

    def _rounds(self, limit: int) -> Iterator[Round]:
        if self.stages is None:
            yield from super()._rounds(limit)
            return
        if self._finished(limit):
            return
        seed = 0 if self.settings.sampling.greedy else self._fresh_seed()
        self.stages.begin(self.tokens[-1], limit - len(self.tokens) - 1, seed)
        start, marks = self.context.length, self.stages.launch(self.context.length)
        while True:
            outcome = self.stages.outcome()
            done = marks
            count, bonus = outcome[4 * self.stages.shape.rows :][:2].tolist()
            after = start + count + 1
            if len(self.tokens) + count + 1 < limit:
                marks = self.stages.launch(after)
            yield self._record(start, outcome, done)
            if self._finished(limit):
                return
            start = after

    def _record(self, start: int, outcome: Tensor, marks: Marks) -> Round:
        assert self.stages is not None
        rows = self.stages.shape.rows
        tree = tree_of(outcome[: 4 * rows].view(4, rows))
        count, bonus, _root, *path = outcome[4 * rows :].tolist()
        nodes = path[:count]
        emitted = self._emit([*(int(tree.tokens[node]) for node in nodes), bonus])
        spent = marks.seconds()
        spent["verify"] += spent.pop("walk")
        return Round(start, tree, nodes, bonus, emitted, StageSeconds(**spent))

    def _fresh_seed(self) -> int:
        """Of this turn's draws: another one each turn, decided by the settings' seed."""
        drawn = torch.randint(2**62, (1,), generator=self.generator, device=self.generator.device)
        return int(drawn)


@lru_cache(maxsize=16)  # graphs hold memory on the device
def stages_of(target: Target, drafter: Drafter | None, settings: Settings) -> Stages | None:
    """The recorded stages of a method, kept from one prompt to the next; None if it has none."""
    if not usable(METHODS[settings.method]):
        _explain(settings, "the size of its trees depends on their scores")
        return None
    return Stages(target, drafter, settings, lanes_for(drafter, settings) if drafter else None)


def _plainer(stages: Stages) -> list[LanesOf]:
    """What to build on if kernels fail."""
    if stages.drafter is None or not served_by_kernels(stages.drafter, stages.settings):
        return []
    return [plain_lanes(stages.drafter, stages.settings)]


def _what_matters(settings: Settings) -> Settings:
    """The settings without what does not change the stages."""
    return replace(settings, max_new_tokens=0, stop=(), seed=0, max_budget=0, costs=None, chances=None)


def _explain(settings: Settings, why: str) -> None:
    logger.warning("%s can't be captured as it is, it is decoded another way: %s", settings.method, why)
