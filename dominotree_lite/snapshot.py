"""One round held still: one draft, the trees that several methods grow from it, and what the target says to each.

A decode commits one tree and goes on; here nothing is committed, so that trees can be compared side by side.
This file knows the core's stages but draws nothing, and does not know where its tokens come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from .budget import Pace
from .drafter import ContextCache, Draft, Drafter
from .equip import check_drafter, equipped
from .errors import InputError
from .methods import METHODS, Settings, build_tree
from .target import Context, Target
from .tree import DraftTree
from .verify import target_draws, tree_inputs, walk


@dataclass(frozen=True)
class Verdict:
    """A tree and the target's answer to it.

    `target_probs` holds, for each node, the target's probability at temperature 1 of the node's token given
    the tokens above it; for the root, of the anchor given what precedes it.
    """

    tree: DraftTree
    accepted: list[int]  # nodes, root left out
    bonus: int
    target_probs: NDArray[np.float64]  # [N+1]

    @property
    def tokens(self) -> list[int]:
        """What the round would emit: the accepted tokens and the bonus."""
        return [int(self.tree.tokens[node]) for node in self.accepted] + [self.bonus]


@dataclass(frozen=True)
class Snapshot:
    """One draft after `context_ids` and the anchor; the verdict on each method's tree, in the order asked."""

    context_ids: list[int]  # committed tokens before the anchor
    anchor: int
    draft: Draft
    verdicts: dict[str, Verdict]


def snapshot(ids: list[int], target: Target, drafter: Drafter, methods: Sequence[str], settings: Settings) -> Snapshot:
    """The round after tokens `ids`, the last of which is the anchor, for each method.

    To look into a round of a result, give `(result.prompt_ids + result.token_ids)[: round.start + 1]`. Of
    `settings` count budget, candidates, child cap, slots, sampling and seed. Raises InputError for fewer than
    two tokens, for an unknown method, and for one that needs another drafter.
    """
    if len(ids) < 2:
        raise InputError(f"{len(ids)} tokens: a round needs an anchor and at least one token before it")
    for name in methods:
        if name not in METHODS:
            raise InputError(f"no method {name!r}; there are {', '.join(METHODS)}")
        check_drafter(name, drafter)
    *before, anchor = ids
    context = Context()
    prefilled = target.prefill(context, before, drafter.config.target_layer_ids)
    draft = drafter.draft(anchor, prefilled.features, ContextCache(), settings.slots)
    belief = float(prefilled.logits[0].double().softmax(-1)[anchor])
    verdicts = {}
    for name in methods:
        own = equipped(replace(settings, method=name), target, drafter)
        tree = build_tree(anchor, draft, drafter, own, len(before), Pace()).tree
        verdicts[name] = _verdict(tree, target, context, settings, belief)
    return Snapshot(before, anchor, draft, verdicts)


@torch.inference_mode()
def _verdict(tree: DraftTree, target: Target, context: Context, settings: Settings, belief: float) -> Verdict:
    inputs = tree_inputs(tree, context.length, target.device)
    visible = inputs.visible if len(tree) else None
    logits = target.verify(context, inputs.tokens, inputs.positions, visible).logits  # [N+1, V]
    context.commit([])  # drop the tree's rows: the next tree starts from the same context
    generator = torch.Generator(target.device).manual_seed(settings.seed)
    found = walk(tree, target_draws(logits, settings.sampling, generator))
    above = logits.double().softmax(-1)[tree.parents[1:].tolist()]  # [N, V]
    probs = above[range(len(tree)), tree.tokens[1:].tolist()].tolist()
    return Verdict(tree, found.nodes, found.bonus, np.array([belief, *probs]))
