"""The methods: the drafter each needs, how it scores, what it grows, and the settings they read.

A method is a drafter's kind, a scorer and a shape: a chain, a tree of a fixed budget, or a tree that a rule cuts. All
else is shared, so a new method is a new line of METHODS. This file drafts nothing and knows no target.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from .budget import Chances, Choice, Costs, Pace, PriceRule, Rule
from .build import chain, frontier
from .drafter import Draft, Drafter
from .errors import InputError
from .scoring import ConditionalScorer, GreedyPathScorer, MarginalScorer, Scorer
from .tree import DraftTree
from .verify import Sampling

DEFAULT_CANDIDATES = 512
ENGINES = ("eager", "graph")


@dataclass(frozen=True)
class Settings:
    """How to decode. `budget` counts nodes without the root; `candidates` None is the whole vocabulary.

    `child_cap` None is min(M, budget). `slots` None drafts every slot that predicts. `candidates` bounds what
    a tree's correction chooses among: the chain always corrects the whole vocabulary, and what is not
    corrected is normalised over all of it. For adaptive methods `max_budget` takes the budget's place; `costs`
    and `chances` None are those measured on this machine and fitted to this drafter (costs.py, credit.py).
    """

    method: str = "dominotree"
    budget: int = 64
    candidates: int | None = DEFAULT_CANDIDATES
    child_cap: int | None = None
    slots: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    max_new_tokens: int = 128
    stop: tuple[str, ...] = ()
    seed: int = 0
    max_budget: int = 256
    costs: Costs | None = None
    chances: Chances | None = None
    engine: str = "eager"

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InputError(f"no method {self.method!r}; there are {', '.join(METHODS)}")
        if self.engine not in ENGINES:
            raise InputError(f"no engine {self.engine!r}; there are {', '.join(ENGINES)}")
        bounds = {"budget": 0, "candidates": 1, "child_cap": 1, "slots": 1, "max_new_tokens": 0, "max_budget": 0}
        for name, least in bounds.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} {value} is too small: give {least} or more")
        if not 0 <= self.seed < 2**63:
            raise InputError(f"seed {self.seed}: give 0 or more, below 2^63")
        if not all(self.stop):
            raise InputError("a stop string is empty")

    @property
    def most_children(self) -> int:
        """The child cap k."""
        return self.child_cap or (self.budget if self.candidates is None else min(self.candidates, self.budget))

    @property
    def deepest(self) -> int:
        """The most depths with nodes: as many as the budget in a tree, since a path takes a node a depth."""
        method = METHODS[self.method]
        return self.budget if method and method.grow is frontier else sys.maxsize


# --- Scores --------------------------------------------------------------------------------------------------

Anchor = int | Tensor  # a tensor [1] where a captured graph reads it anew each round
MakeScorer = Callable[[Drafter, Draft, Anchor, Settings], Scorer]


def _marginal_chain(drafter: Drafter, draft: Draft, anchor: Anchor, settings: Settings) -> Scorer:
    return MarginalScorer(draft.base_logits, child_cap=1)


def _marginal(drafter: Drafter, draft: Draft, anchor: Anchor, settings: Settings) -> Scorer:
    return MarginalScorer(draft.base_logits, child_cap=settings.child_cap or settings.budget)


def _corrected_chain(drafter: Drafter, draft: Draft, anchor: Anchor, settings: Settings) -> Scorer:
    assert drafter.head is not None
    return ConditionalScorer(drafter.head, draft.hidden, draft.base_logits, anchor, child_cap=1)


def _corrected(scorer: type[GreedyPathScorer] | type[ConditionalScorer]) -> MakeScorer:
    def make(drafter: Drafter, draft: Draft, anchor: Anchor, settings: Settings) -> Scorer:
        assert drafter.head is not None
        most, candidates = settings.most_children, settings.candidates
        return scorer(drafter.head, draft.hidden, draft.base_logits, anchor, most, candidates)

    return make


# --- Shapes --------------------------------------------------------------------------------------------------


MakeTree = Callable[[Scorer, int, int], DraftTree]  # of scorer, anchor, budget


def _grow_chain(scorer: Scorer, anchor: int, budget: int) -> DraftTree:
    return chain(scorer, anchor)


# --- Methods -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Method:
    """The kind of drafter a method needs, how it scores and grows, and the rule that cuts what it grew."""

    drafter: str  # "dflash" or "domino"
    scorer: MakeScorer
    grow: MakeTree = frontier
    rule: type[Rule] | None = None
    calibrated: bool = False  # whether its rule reads chances off a fitted map, not off the scores

    @property
    def is_chain(self) -> bool:
        """Whether it drafts one path, whose length the budget does not bound."""
        return self.grow is _grow_chain


METHODS: dict[str, Method | None] = {
    "ar": None,
    "dflash": Method("dflash", _marginal_chain, _grow_chain),
    "ddtree": Method("dflash", _marginal),
    "domino": Method("domino", _corrected_chain, _grow_chain),
    "marginal": Method("domino", _marginal),
    "greedypath": Method("domino", _corrected(GreedyPathScorer)),
    "dominotree": Method("domino", _corrected(ConditionalScorer)),
    "caddtree": Method("dflash", _marginal, rule=Rule),
    "condadaptive": Method("domino", _corrected(ConditionalScorer), rule=Rule),
    "caladaptive": Method("domino", _corrected(ConditionalScorer), rule=PriceRule, calibrated=True),
}


@dataclass(frozen=True)
class Grown:
    """A round's tree, and why it ends where it does if a rule cut it."""

    tree: DraftTree
    choice: Choice | None = None


@torch.inference_mode()
def build_tree(
    anchor: int, draft: Draft | None, drafter: Drafter | None, settings: Settings, context: int, pace: Pace
) -> Grown:
    """What `settings.method` grows from a draft after so many committed tokens; the bare anchor without one.

    `pace` is the request's so far, for a method whose rule asks.
    """
    method = METHODS[settings.method]
    if method is None or draft is None or drafter is None:
        return Grown(DraftTree.root_only(anchor))
    if method.rule is None:
        return Grown(method.grow(method.scorer(drafter, draft, anchor, settings), anchor, settings.budget))
    chances = settings.chances if method.calibrated else np.exp
    assert settings.costs is not None and chances is not None  # as `decode.equipped` sees to
    rule = method.rule(settings.costs, chances, context, settings.budget, pace)
    few = replace(settings, child_cap=min(settings.most_children or 1, rule.children))
    tree = frontier(method.scorer(drafter, draft, anchor, few), anchor, rule.cap, rule.grow)
    choice = rule.choose(tree)
    return Grown(tree.prefix(choice.nodes), choice)
