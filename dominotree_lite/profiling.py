"""Measuring a round's parts on the machine at hand: draft, build, verification with commit.

Every part is run many times, all parts in turn and in changing order, so that a machine that slows down slows all
alike; medians count, and a monotone convex fit smooths them (fits.py). Verification has real tree masks and reads
the features of the drafter's layers. No text is decoded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .build import frontier
from .costs import RoundCosts
from .drafter import ContextCache, Drafter
from .errors import InputError
from .fits import convex, plane
from .methods import METHODS, Settings
from .target import Context, Forward, Target
from .tree import DraftTree
from .verify import Sampling, target_draws, tree_inputs, walk

PROBES = {"dflash": "caddtree", "domino": "condadaptive"}  # whose scorer is measured
FEW = 4  # new tokens that a draft reads, as after a usual round


@dataclass(frozen=True)
class ProfileSettings:
    """What is measured: contexts in tokens, trees of up to `max_budget` nodes, so many repeats after a first."""

    contexts: tuple[int, ...] = (64, 256, 1024)
    max_budget: int = 256
    candidates: int | None = 512
    repeats: int = 9
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.contexts or min(self.contexts) < FEW + 1 or len(set(self.contexts)) != len(self.contexts):
            raise InputError(f"contexts {self.contexts}: give one or more, all different, of {FEW + 1} tokens or more")
        if self.max_budget < 2 or self.repeats < 1 or (self.candidates is not None and self.candidates < 1):
            raise InputError("a profile needs max_budget of 2 or more, repeats and candidates of 1 or more")


@dataclass(frozen=True)
class Profile:
    """The fitted costs, and what they were fitted to, in a form for JSON."""

    costs: RoundCosts
    measured: dict[str, Any]


def profile(
    target: Target, drafter: Drafter, settings: ProfileSettings, step: Callable[[], None] | None = None
) -> Profile:
    """Measure and fit; `step` is called after each repeat, the first of which only warms up.

    Raises InputError where a context with a tree behind it exceeds the target's positions.
    """
    if max(settings.contexts) + drafter.horizon + 1 > target.max_positions:
        raise InputError(
            f"context {max(settings.contexts)} and a block exceed the {target.max_positions} positions of {target.name}"
        )
    contexts, nodes = tuple(sorted(settings.contexts)), _grid(settings.max_budget)
    probes: dict[tuple[Any, ...], Callable[[], float]] = {}
    for number, length in enumerate(contexts):
        bench = _Bench(target, drafter, length, settings)
        probes["draft", length] = bench.draft
        probes |= {("verify", length, n): partial(bench.verify, _comb(n, drafter.horizon, target)) for n in nodes}
        if number == len(contexts) - 1:  # building does not read the context
            probes |= dict(bench.builds())
    medians = _interleaved(probes, settings, step)
    return _fitted(contexts, nodes, medians, settings)


def _grid(most: int) -> tuple[int, ...]:
    """0, 1, 2, 4 ... up to the largest tree, and half-way steps where passes get dear."""
    steps = {0, most} | {2**i for i in range(most.bit_length()) if 2**i < most}
    return tuple(sorted(steps | {3 * 2**i for i in range(2, most.bit_length()) if 3 * 2**i < most}))


def _comb(nodes: int, horizon: int, target: Target) -> DraftTree:
    """A tree of so many nodes that branches in two, no deeper than the horizon: each path is as long as usual."""
    parents = [-1] + [(n - 1) // 2 for n in range(1, nodes + 1)]
    depths = [0]
    for node in range(1, nodes + 1):
        if depths[parents[node]] == horizon:
            parents[node] = 0
        depths.append(depths[parents[node]] + 1)
    tokens = [node % target.vocab_size for node in range(nodes + 1)]
    return DraftTree.from_lists(tokens, parents, depths, [-float(depth) for depth in depths])


def _interleaved(
    probes: dict[tuple[Any, ...], Callable[[], float]], settings: ProfileSettings, step: Callable[[], None] | None
) -> dict[tuple[Any, ...], float]:
    chance, seconds = np.random.default_rng(settings.seed), {key: list[float]() for key in probes}
    keys = list(probes)
    for repeat in range(settings.repeats + 1):
        for index in chance.permutation(len(keys)):
            elapsed = probes[keys[index]]()
            if repeat:
                seconds[keys[index]].append(elapsed)
        if step:
            step()
    return {key: float(np.median(each)) for key, each in seconds.items()}


class _Bench:
    """One context, held still: every measurement leaves it as it was."""

    def __init__(self, target: Target, drafter: Drafter, length: int, settings: ProfileSettings) -> None:
        self.target, self.drafter = target, drafter
        self.layer_ids = drafter.config.target_layer_ids
        chance = np.random.default_rng(settings.seed)
        ids = chance.integers(target.vocab_size, size=length + 1).tolist()
        self.anchor, self.context, self.cache = ids.pop(), Context(), ContextCache()
        self.features = target.prefill(self.context, ids, self.layer_ids).features
        drafter.draft(self.anchor, self.features[:-FEW], self.cache)
        self.latest = self.features[-FEW:]
        most = settings.max_budget
        self.settings = Settings(PROBES[drafter.kind], budget=most, candidates=settings.candidates)

    def draft(self) -> float:
        cache = ContextCache(list(self.cache.layers))
        return self._seconds(lambda: self.drafter.draft(self.anchor, self.latest, cache))

    def verify(self, tree: DraftTree) -> float:
        start, path = self.context.length, tree.path(len(tree))

        @torch.inference_mode()
        def whole() -> None:
            inputs = tree_inputs(tree, start, self.target.device)
            visible = inputs.visible if len(tree) else None
            found: Forward = self.target.verify(self.context, inputs.tokens, inputs.positions, visible, self.layer_ids)
            walk(tree, target_draws(found.logits, Sampling(), torch.Generator()))
            self.context.commit([0, *path])
            found.features[[0, *path]].sum()

        elapsed = self._seconds(whole)
        self.context.length = start
        self.context.commit([])  # what was committed is forgotten
        return elapsed

    def builds(self) -> Iterator[tuple[tuple[Any, ...], Callable[[], float]]]:
        """One probe for each of a few depths and widths, under ("build", depths, lanes)."""
        draft = self.drafter.draft(self.anchor, self.latest, ContextCache(list(self.cache.layers)))
        horizon = self.drafter.horizon
        for depths in sorted({1, (horizon + 1) // 2, horizon}):
            for lanes in sorted({1, min(16, self.settings.budget), self.settings.budget}):
                narrow = _Narrow(depths, lanes)
                self._build(draft, narrow)
                self._build(draft, narrow)  # to know how many lanes it scores
                yield ("build", depths, narrow.scored), partial(self._seconds, partial(self._build, draft, narrow))

    @torch.inference_mode()
    def _build(self, draft: Any, narrow: _Narrow) -> None:
        narrow.restart()
        method = METHODS[self.settings.method]
        assert method is not None
        scorer = method.scorer(self.drafter, draft, self.anchor, self.settings)
        frontier(scorer, self.anchor, self.settings.budget, narrow.grow)

    def _seconds(self, work: Callable[[], object]) -> float:
        self.target.synchronize()
        began = time.perf_counter()
        work()
        self.target.synchronize()
        return time.perf_counter() - began


class _Narrow:
    """Lets a frontier grow so many depths, with so many lanes at each at most; counts the lanes that were scored."""

    def __init__(self, depths: int, lanes: int) -> None:
        self.depths, self.most = depths, lanes
        self.restart()

    def restart(self) -> None:
        self.left, self.scored = self.depths - 1, 1

    def grow(self, kept: NDArray[np.float64], newest: NDArray[np.float64]) -> NDArray[np.bool_]:
        lanes = np.arange(len(newest)) < (self.most if self.left else 0)
        self.left, self.scored = max(self.left - 1, 0), self.scored + int(lanes.sum())
        return lanes


def _fitted(
    contexts: tuple[int, ...],
    nodes: tuple[int, ...],
    medians: dict[tuple[Any, ...], float],
    settings: ProfileSettings,
) -> Profile:
    rows = [[medians["verify", length, n] for n in nodes] for length in contexts]
    drafts = [medians["draft", length] for length in contexts]
    builds = [[key[1], key[2], seconds] for key, seconds in medians.items() if key[0] == "build"]
    columns = np.array([[1.0, depths, lanes] for depths, lanes, _ in builds])
    start, depth, lane = plane(columns, np.array([seconds for *_, seconds in builds])).tolist()
    table = tuple(tuple(convex(np.array(nodes, float), np.array(row)).tolist()) for row in rows)
    costs = RoundCosts(contexts, nodes, tuple(drafts), table, start, depth, lane)
    measured = {
        "contexts": list(contexts),
        "nodes": list(nodes),
        "draft": drafts,
        "verify": rows,
        "build": builds,
        "candidates": settings.candidates,
        "max_budget": settings.max_budget,
        "repeats": settings.repeats,
    }
    return Profile(costs, measured)
