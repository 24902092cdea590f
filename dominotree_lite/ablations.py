"""Ablations as calls that a notebook makes again with one number changed: each sweeps one list and gives a table.

All variants of a sweep decode the same prompts in one process, prompt by prompt, with plain decoding (`ar`) as
their baseline. This file decodes, counts and lays out; what a variant is made of, other files know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from .build import chain, frontier
from .calibration import TemperedScorer
from .drafter import Draft, Drafter
from .equip import check_drafter, equipped
from .errors import InputError
from .evaluate import BASELINE, WARM_UP_TOKENS, Drafters, decode_prompt, drafter_of, seed_of
from .intervals import Interval, over_groups, ratio_of_ratios, ratio_of_sums
from .methods import Settings
from .prompts import PromptRow
from .scoring import ConditionalScorer, Scorer
from .speculative import (
    Drafted,
    DrawnScorer,
    Grow,
    Judge,
    decode_drawn,
    dice,
    drawn_chain,
    judge_by_match,
    judge_by_ratio,
)
from .tables import Table, markdown, plain
from .target import Target

RUNGS = ("marginal", "greedypath", "dominotree")
CANDIDATES = (8, 32, 128, 512, None)  # None is the whole vocabulary
BUDGETS = (2, 4, 8, 16, 32, 64)
SHAPES = ("chain", "tree")
DRAWN_CHILDREN = 8  # of a node whose children are drawn: the child cap of the published code
HEADER = ("variant", "prompts", "tau", "ms a round", "tokens/s", "speed-up", "same as ar")


@dataclass(frozen=True)
class Row:
    """One variant on all prompts. Speed-up is over `ar` on the same prompts; both intervals are over prompts."""

    variant: str
    prompts: int
    tokens: int
    rounds: int
    tau: Interval
    seconds: float  # of decoding, without prefill
    speedup: Interval
    same_as_ar: int | None  # texts; None above temperature 0

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.tokens else 0.0


@dataclass(frozen=True)
class Ablation:
    """What a sweep found. It prints as a table, and a notebook shows it as one."""

    title: str
    rows: list[Row]

    def __getitem__(self, variant: str) -> Row:
        """The row of this name. Raises KeyError if there is none."""
        return {row.variant: row for row in self.rows}[variant]

    def table(self) -> Table:
        """The same, to be written in another form (`tables`)."""
        rows = [
            (
                row.variant,
                row.prompts,
                row.tau,
                1000 * row.seconds / max(row.rounds, 1),
                row.tokens_per_second,
                row.speedup,
                row.same_as_ar,
            )
            for row in self.rows
        ]
        return Table("ablation", self.title, HEADER, rows)

    def __str__(self) -> str:
        return f"{self.title}\n{plain(self.table())}"

    def _repr_markdown_(self) -> str:
        return markdown(self.table())


# --- Sweeps ---------------------------------------------------------------------------------------------------


def conditioning(
    prompts: Sequence[PromptRow],
    target: Target,
    drafters: Drafters,
    rungs: Sequence[str] = RUNGS,
    settings: Settings | None = None,
) -> Ablation:
    """The ladder: nodes scored by no correction, by that of the greedy path, by that of their own path."""
    settings = settings or Settings()
    variants = {rung: replace(settings, method=rung) for rung in rungs}
    return _by_settings(f"What a score is conditioned on, {settings.budget} nodes", prompts, target, drafters, variants)


def candidates(
    prompts: Sequence[PromptRow],
    target: Target,
    drafters: Drafters,
    counts: Sequence[int | None] = CANDIDATES,
    settings: Settings | None = None,
) -> Ablation:
    """M, how many tokens of a depth the correction chooses among; None is the whole vocabulary."""
    settings = settings or Settings()
    if settings.method not in ("greedypath", "dominotree"):
        raise InputError(f"{settings.method} corrects no candidates: take greedypath or dominotree")
    names = {count: "M = the vocabulary" if count is None else f"M = {count}" for count in counts}
    variants = {name: replace(settings, candidates=count) for count, name in names.items()}
    title = f"Candidates of a depth, {settings.method}, {settings.budget} nodes"
    return _by_settings(title, prompts, target, drafters, variants)


def budgets(
    prompts: Sequence[PromptRow],
    target: Target,
    drafters: Drafters,
    sizes: Sequence[int] = BUDGETS,
    settings: Settings | None = None,
) -> Ablation:
    """Nodes of a tree. The best one here is a choice made on these prompts: report it on others."""
    settings = settings or Settings()
    variants = {f"{size} nodes": replace(settings, budget=size) for size in sizes}
    return _by_settings(f"Budgets of {settings.method}", prompts, target, drafters, variants)


def head(
    prompts: Sequence[PromptRow],
    target: Target,
    drafters: Drafters,
    shapes: Sequence[str] = SHAPES,
    settings: Settings | None = None,
) -> Ablation:
    """With and without the correction head: left out of a drafter that has one, and never trained (DFlash).

    The latter only where `drafters` has one: it is another drafter, so more than the head differs there.
    """
    settings = settings or Settings()
    check_drafter("domino", drafters.get("domino"))
    bare_chain = replace(settings, method="marginal", child_cap=1, budget=drafters["domino"].horizon)
    known = {
        "chain": {
            "never trained": replace(settings, method="dflash"),
            "left out": bare_chain,
            "with": replace(settings, method="domino"),
        },
        "tree": {
            "never trained": replace(settings, method="ddtree"),
            "left out": replace(settings, method="marginal"),
            "with": replace(settings, method="dominotree"),
        },
    }
    variants = {
        f"{shape}, head {state}": own
        for shape in _shapes(shapes)
        for state, own in known[shape].items()
        if state != "never trained" or "dflash" in drafters
    }
    return _by_settings(f"The correction head, trees of {settings.budget} nodes", prompts, target, drafters, variants)


def drawing(
    prompts: Sequence[PromptRow],
    target: Target,
    drafters: Drafters,
    shapes: Sequence[str] = SHAPES,
    settings: Settings | None = None,
) -> Ablation:
    """Drafts that are the drafter's best guess against drafts drawn from its law, at a temperature above 0.

    A drawn chain is judged by the ratio of the laws, all else by match; every variant's text has the target's law
    (see `speculative`). Drawn tokens have the drafter's law at the target's temperature. Trees have at most
    `settings.child_cap` children a node, 8 where that is None. Raises InputError at temperature 0.
    """
    settings = settings or Settings()
    drafter = drafters.get("domino")
    check_drafter("domino", drafter)
    assert drafter is not None
    own = _Drafting(drafter, settings)
    ways: dict[str, dict[str, tuple[Grow, Judge]]] = {
        "chain": {"best guess": (own.best_chain, judge_by_match), "drawn": (own.drawn_chain, judge_by_ratio)},
        "tree": {"best guess": (own.best_tree, judge_by_match), "drawn": (own.drawn_tree, judge_by_match)},
    }
    runs = {
        f"{shape}, {way}": partial(own.run, target, *how)
        for shape in _shapes(shapes)
        for way, how in ways[shape].items()
    }
    title = f"Drafts guessed and drawn, temperature {settings.sampling.temperature:g}, trees of {settings.budget} nodes"
    return _measure(title, prompts, target, settings, runs)


def _shapes(shapes: Sequence[str]) -> Sequence[str]:
    if strange := [shape for shape in shapes if shape not in SHAPES]:
        raise InputError(f"no shape {strange[0]!r}; there are {', '.join(SHAPES)}")
    return shapes


# --- Drafts ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Drafting:
    """Four ways to grow a draft, and the decoding with any of them."""

    drafter: Drafter
    settings: Settings

    def run(self, target: Target, grow: Grow, judge: Judge, prompt: PromptRow, most: int) -> Taken:
        own = replace(self.settings, seed=seed_of(prompt, self.settings.seed), max_new_tokens=most)
        found = decode_drawn(prompt.turns, target, self.drafter, own, grow, judge)
        return Taken(found.token_ids, found.tokens, found.rounds, found.seconds)

    def best_chain(self, draft: Draft, anchor: int, generator: torch.Generator) -> Drafted:
        return Drafted(chain(self._scorer(draft, anchor, 1, None), anchor))

    def drawn_chain(self, draft: Draft, anchor: int, generator: torch.Generator) -> Drafted:
        return drawn_chain(self._law(draft, anchor, None), anchor, draft.base_logits.shape[1], dice(generator))

    def best_tree(self, draft: Draft, anchor: int, generator: torch.Generator) -> Drafted:
        scorer = self._scorer(draft, anchor, self._children, self.settings.candidates)
        return Drafted(frontier(scorer, anchor, self.settings.budget))

    def drawn_tree(self, draft: Draft, anchor: int, generator: torch.Generator) -> Drafted:
        scorer = DrawnScorer(self._law(draft, anchor, self.settings.candidates), self._children, generator)
        return Drafted(frontier(scorer, anchor, self.settings.budget))

    @property
    def _children(self) -> int:
        return self.settings.child_cap or DRAWN_CHILDREN

    def _scorer(self, draft: Draft, anchor: int, child_cap: int, count: int | None) -> Scorer:
        assert self.drafter.head is not None
        return ConditionalScorer(self.drafter.head, draft.hidden, draft.base_logits, anchor, child_cap, count)

    def _law(self, draft: Draft, anchor: int, count: int | None) -> Scorer:
        """Every candidate's probability at the target's temperature."""
        most = count or draft.base_logits.shape[1]
        return TemperedScorer(self._scorer(draft, anchor, most, count), self.settings.sampling.temperature, most)


# --- Measuring ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Taken:
    """What one prompt took; `tokens` without those that prefill yields."""

    token_ids: list[int]
    tokens: int
    rounds: int
    seconds: float


Run = Callable[[PromptRow, int], Taken]  # of a prompt, with so many new tokens a turn at most


def _by_settings(
    title: str, prompts: Sequence[PromptRow], target: Target, drafters: Drafters, variants: Mapping[str, Settings]
) -> Ablation:
    if not variants:
        raise InputError("there is nothing to sweep: give a list of one or more")
    for settings in variants.values():
        equipped(settings, target, drafter_of(settings.method, drafters))
    runs = {name: partial(_decoded, target, drafters, settings) for name, settings in variants.items()}
    return _measure(title, prompts, target, next(iter(variants.values())), runs)


def _decoded(target: Target, drafters: Drafters, settings: Settings, prompt: PromptRow, most: int) -> Taken:
    result = decode_prompt(prompt, target, drafters, replace(settings, max_new_tokens=most))
    tokens = sum(len(one.tokens) for one in result.rounds)
    return Taken(result.token_ids, tokens, len(result.rounds), result.seconds)


def _measure(
    title: str, prompts: Sequence[PromptRow], target: Target, settings: Settings, runs: Mapping[str, Run]
) -> Ablation:
    """Every run on every prompt, after a few tokens of each to warm up."""
    if not prompts or not runs:
        raise InputError("there is nothing to measure: give one prompt or more, and a list to sweep")
    baseline = partial(_decoded, target, {}, replace(settings, method=BASELINE))
    every: dict[str, Run] = {BASELINE: baseline, **runs}
    first = replace(prompts[0], turns=prompts[0].turns[:1])
    for run in every.values():
        run(first, min(WARM_UP_TOKENS, settings.max_new_tokens))
    taken: dict[str, list[Taken]] = {name: [] for name in every}
    for prompt in prompts:
        for name, run in every.items():
            taken[name].append(run(prompt, settings.max_new_tokens))
    return Ablation(title, [_row(name, own, taken[BASELINE], settings) for name, own in taken.items()])


def _row(name: str, own: Sequence[Taken], baseline: Sequence[Taken], settings: Settings) -> Row:
    pairs = list(zip(own, baseline, strict=True))
    columns = np.array([(a.tokens, a.rounds, a.seconds, b.tokens, b.seconds) for a, b in pairs], float)
    return Row(
        variant=name,
        prompts=len(own),
        tokens=sum(one.tokens for one in own),
        rounds=sum(one.rounds for one in own),
        tau=over_groups([columns], ratio_of_sums(0, 1)),
        seconds=sum(one.seconds for one in own),
        speedup=over_groups([columns], ratio_of_ratios((0, 2), (3, 4))),
        same_as_ar=sum(a.token_ids == b.token_ids for a, b in pairs) if settings.sampling.greedy else None,
    )
