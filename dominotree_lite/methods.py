"""The methods: the drafter each needs, how it scores, what it grows, and the settings they read.

A method is a drafter's kind, a scorer and a shape: a chain, a tree of a fixed budget, or a tree that a rule cuts. All
else is shared, so a new method is a new line of METHODS. This file drafts nothing and knows no target.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from .budget import Chances, Choice, Costs, DepthRule, Rule
from .build import chain, frontier
from .drafter import Draft, Drafter
from .errors import InputError
from .scoring import ConditionalScorer, GreedyPathScorer, MarginalScorer, Scorer
from .tree import DraftTree
from .verify import Sampling

DEFAULT_CANDIDATES = 512


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

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InputError(f"no method {self.method!r}; there are {', '.join(METHODS)}")
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


# --- Scores --------------------------------------------------------------------------------------------------

MakeScorer = Callable[[Drafter, Draft, int, Settings], Scorer]


def _marginal_chain(drafter: Drafter, draft: Draft, anchor: int, settings: Settings) -> Scorer:
    return MarginalScorer(draft.base_logits, child_cap=1)


def _marginal(drafter: Drafter, draft: Draft, anchor: int, settings: Settings) -> Scorer:
    return MarginalScorer(draft.base_logits, child_cap=settings.child_cap or settings.budget)


def _corrected_chain(drafter: Drafter, draft: Draft, anchor: int, settings: Settings) -> Scorer:
    assert drafter.head is not None
    return ConditionalScorer(drafter.head, draft.hidden, draft.base_logits, anchor, child_cap=1)


def _corrected(scorer: type[GreedyPathScorer] | type[ConditionalScorer]) -> MakeScorer:
    def make(drafter: Drafter, draft: Draft, anchor: int, settings: Settings) -> Scorer:
        assert drafter.head is not None
        most, candidates = settings.most_children, settings.candidates
        return scorer(drafter.head, draft.hidden, draft.base_logits, anchor, most, candidates)

    return make


# --- Shapes --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grown:
    """A round's tree, and why it ends where it does if a rule cut it."""

    tree: DraftTree
    choice: Choice | None = None


MakeTree = Callable[[Scorer, int, Settings, int], Grown]  # of scorer, anchor, settings, committed tokens


def _grow_chain(scorer: Scorer, anchor: int, settings: Settings, context: int) -> Grown:
    return Grown(chain(scorer, anchor))


def _grow_tree(scorer: Scorer, anchor: int, settings: Settings, context: int) -> Grown:
    return Grown(frontier(scorer, anchor, settings.budget))


def _grow_by_score(scorer: Scorer, anchor: int, settings: Settings, context: int) -> Grown:
    assert settings.costs is not None
    return _cut(scorer, anchor, Rule(settings.costs, np.exp, context, settings.budget, scorer.horizon))


def _grow_by_chance(scorer: Scorer, anchor: int, settings: Settings, context: int) -> Grown:
    assert settings.costs is not None and settings.chances is not None
    rule = DepthRule(settings.costs, settings.chances, context, settings.budget, scorer.horizon)
    return _cut(scorer, anchor, rule)


def _cut(scorer: Scorer, anchor: int, rule: Rule) -> Grown:
    tree = frontier(scorer, anchor, rule.cap, rule.grow)
    choice = rule.choose(tree)
    return Grown(tree.prefix(choice.nodes), choice)


# --- Methods -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Method:
    """The kind of drafter a method needs, how it scores, what it grows; and what its rule reads, if it has one."""

    drafter: str  # "dflash" or "domino"
    scorer: MakeScorer
    grow: MakeTree

    @property
    def adaptive(self) -> bool:
        """Whether it chooses each round's budget, for which it needs costs."""
        return self.grow in (_grow_by_score, _grow_by_chance)

    @property
    def calibrated(self) -> bool:
        """Whether it needs a map from scores to chances."""
        return self.grow is _grow_by_chance


METHODS: dict[str, Method | None] = {
    "ar": None,
    "dflash": Method("dflash", _marginal_chain, _grow_chain),
    "ddtree": Method("dflash", _marginal, _grow_tree),
    "domino": Method("domino", _corrected_chain, _grow_chain),
    "marginal": Method("domino", _marginal, _grow_tree),
    "greedypath": Method("domino", _corrected(GreedyPathScorer), _grow_tree),
    "dominotree": Method("domino", _corrected(ConditionalScorer), _grow_tree),
    "caddtree": Method("dflash", _marginal, _grow_by_score),
    "condadaptive": Method("domino", _corrected(ConditionalScorer), _grow_by_score),
    "caladaptive": Method("domino", _corrected(ConditionalScorer), _grow_by_chance),
}


def check_drafter(method: str, drafter: Drafter | None) -> None:
    """Raise InputError unless the drafter is of the kind the method needs."""
    wanted = METHODS[method]
    if wanted is None:
        return
    if drafter is None:
        raise InputError(f"method {method} needs a {wanted.drafter} drafter, none was given")
    if drafter.kind != wanted.drafter:
        raise InputError(
            f"method {method} needs a {wanted.drafter} drafter, {drafter.name or 'this one'} is {drafter.kind}"
        )


@torch.inference_mode()
def build_tree(anchor: int, draft: Draft | None, drafter: Drafter | None, settings: Settings, context: int) -> Grown:
    """What `settings.method` grows from a draft after so many committed tokens; the bare anchor without one."""
    method = METHODS[settings.method]
    if method is None or draft is None or drafter is None:
        return Grown(DraftTree.root_only(anchor))
    return method.grow(method.scorer(drafter, draft, anchor, settings), anchor, settings, context)
