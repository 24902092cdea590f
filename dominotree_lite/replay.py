"""Many trees on a text that is known already: which of its tokens each tree holds, at every place of the text.

At temperature 0 the text is the target's own whatever is drafted, so a tree's accepted path is where the tree
follows the text; no tree needs to be verified. One draft a place serves all scorers, so they are compared on
the very same rounds. And since a best-first tree holds those of all smaller budgets, one replay answers for
each of them. This file draws nothing and knows no method by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from .build import frontier
from .drafter import ContextCache, Draft, Drafter
from .errors import InputError
from .scoring import Scorer
from .target import Context, Target
from .tree import DraftTree

Scorers = Mapping[str, Callable[[Draft, int], Scorer]]  # name -> scorer of a draft and its anchor


def follow(tree: DraftTree, text: Sequence[int]) -> list[int]:
    """The nodes of the tree along these tokens, the root left out. The last is the budget that all of them need."""
    nodes, node = [], 0
    for token in text:
        child = tree.child(node, token)
        if child is None:
            break
        node = child
        nodes.append(node)
    return nodes


@dataclass(frozen=True)
class Place:
    """A tree grown at one place of a text, and its nodes along the text: those the target would accept there."""

    tree: DraftTree
    accepted: list[int]  # nodes, root left out

    def prefix(self, budget: int) -> Place:
        """The same place with the first `budget` nodes of its tree."""
        return Place(self.tree.prefix(budget), [node for node in self.accepted if node <= budget])


def places(
    prompt_ids: Sequence[int],
    text: Sequence[int],
    target: Target,
    drafter: Drafter,
    scorers: Scorers,
    budget: int,
    every: int = 1,
) -> dict[str, list[Place]]:
    """For each scorer, its tree of `budget` nodes at every so many tokens of `text` as anchor, the last left out.

    The text is cut off where it ends, as `decode` cuts a draft: what stands behind the last token but one can't
    be accepted. Raises InputError for an empty prompt and for `every` below 1.
    """
    ids = [*prompt_ids, *text]
    if not prompt_ids:
        raise InputError("the prompt is empty: it needs at least one token")
    if every < 1:
        raise InputError(f"every {every}: give the tokens from one place to the next, 1 or more")
    features = target.prefill(Context(), ids, drafter.config.target_layer_ids).features
    found: dict[str, list[Place]] = {name: [] for name in scorers}
    for at in range(len(prompt_ids), len(ids) - 1, every):
        rest = ids[at + 1 : -1]  # the last token can only be a bonus
        draft = drafter.draft(ids[at], features[:at], ContextCache(), len(rest) or 1)
        with torch.inference_mode():
            for name, make in scorers.items():
                tree = frontier(make(draft, ids[at]), ids[at], budget)
                found[name].append(Place(tree, follow(tree, rest)))
    return found


def replay(
    prompt_ids: Sequence[int],
    text: Sequence[int],
    target: Target,
    drafter: Drafter,
    scorers: Scorers,
    budget: int,
) -> dict[str, list[list[int]]]:
    """The accepted nodes alone of `places` at every token of the text but the last; raises what that raises."""
    found = places(prompt_ids, text, target, drafter, scorers, budget)
    return {name: [place.accepted for place in each] for name, each in found.items()}


@dataclass(frozen=True)
class Rounds:
    """A text's decoding with trees of one budget: how many rounds, and how many tokens they emitted."""

    rounds: int
    tokens: int

    @property
    def tau(self) -> float:
        """Mean tokens a round; 0 if no round was needed."""
        return self.tokens / self.rounds if self.rounds else 0.0


def rounds_of(places: Sequence[Sequence[int]], budget: int) -> Rounds:
    """What `decode` would do with a scorer's `places` of `replay`: from the first anchor, hop by hop."""
    at = rounds = 0
    while at < len(places):
        at += sum(node <= budget for node in places[at]) + 1
        rounds += 1
    return Rounds(rounds, len(places))


def rescored(tree: DraftTree, scorer: Scorer) -> NDArray[np.float64]:
    """[N+1]: the scores of the tree's very nodes by another scorer; -inf for what that one could not draft.

    Give it a scorer without a child cap (as many children as candidates), or nodes beyond the cap count as
    impossible.
    """
    scores, states = np.full(len(tree) + 1, -np.inf), [scorer.root()]
    scores[0] = 0.0
    answers: dict[int, dict[int, float]] = {}
    for node in range(1, len(tree) + 1):
        parent, token = int(tree.parents[node]), int(tree.tokens[node])
        if parent not in answers:
            children = scorer.children(int(tree.depths[node]), states[parent])
            answers[parent] = dict(zip(children.tokens[0].tolist(), children.log_probs[0].tolist(), strict=True))
        scores[node] = scores[parent] + answers[parent].get(token, -np.inf)
        states.append(scorer.advance(states[parent], torch.tensor([token], device=states[parent].device)))
    return scores
