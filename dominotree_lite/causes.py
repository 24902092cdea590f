"""Why a tree promises more, or less, than is accepted: the gap of the same nodes, taken apart into its causes.

From what a tree promises to what came of it are three steps, each of which changes one thing only:

    promised   by its own scores, normalised over M candidates
    whole      the same nodes, scored over the whole vocabulary            (less: what renormalising added)
    target     the same nodes, by the target's own law at temperature 1    (less: the drafter's error)
    accepted   by the greedy target, which takes one token for certain     (less: acceptance isn't probability)

A tree also chooses the nodes that its score flatters; so the drafter's error is asked again of nodes that another
score has chosen. Beyond DominoTree (arXiv 2607.08642), which names over-credited scores and no causes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from .budget import Floats
from .drafter import Drafter
from .equip import check_drafter
from .errors import InputError
from .methods import METHODS, Settings
from .replay import rescored
from .scoring import ConditionalScorer
from .snapshot import Snapshot, snapshot
from .target import Target
from .tree import DraftTree
from .verify import Sampling

OWN, OTHER = "dominotree", "marginal"


@dataclass(frozen=True)
class Gap:
    """Means a round over the same rounds; `chosen_by` is the method whose tree holds the nodes."""

    chosen_by: str
    candidates: int | None  # None: the whole vocabulary
    nodes: float
    promised: float  # by the score that chose them
    whole: float
    target: float
    accepted: float

    @property
    def renormalising(self) -> float:
        """What normalising over M candidates adds to the promise."""
        return self.promised - self.whole

    @property
    def drafting(self) -> float:
        """What the drafter promises beyond the target's own law."""
        return self.whole - self.target

    @property
    def greediness(self) -> float:
        """What the target's law holds beyond what the greedy target takes; negative where greed helps."""
        return self.target - self.accepted


def gaps(
    rounds: Sequence[list[int]],
    target: Target,
    drafter: Drafter,
    settings: Settings,
    counts: Sequence[int | None] = (16, 64, 512, None),
) -> list[Gap]:
    """A row for each number of candidates, and one of nodes that the uncorrected base chose, on the same rounds.

    A round is its tokens up to the anchor, `(result.prompt_ids + result.token_ids)[: round.start + 1]`. Of `settings`
    count budget, child cap and slots. Raises InputError for no round and for a drafter that is not Domino.
    """
    check_drafter(OWN, drafter)
    if not rounds:
        raise InputError("there are no rounds to look into")
    greedy = replace(settings, sampling=Sampling())
    asked = [(OWN, count) for count in counts] + [(OTHER, None)]
    sums = np.zeros((len(asked), 5))
    for ids in rounds:
        for row, (method, count) in enumerate(asked):
            sums[row] += _round(snapshot(ids, target, drafter, [method], replace(greedy, candidates=count)), drafter)
    means = sums / len(rounds)
    return [Gap(method, count, *row) for (method, count), row in zip(asked, means.tolist(), strict=True)]


def _round(moment: Snapshot, drafter: Drafter) -> Floats:
    """Nodes, promised, whole, target, accepted of the one method of a snapshot."""
    (verdict,) = moment.verdicts.values()
    tree = verdict.tree
    with torch.inference_mode():
        whole = np.exp(rescored(tree, _everything(moment, drafter))[1:]).sum()
    own, law = tree.expected_accepted(), path_chances(tree, verdict.target_probs)[1:].sum()
    return np.array([len(tree), own, whole, law, len(verdict.accepted)])


def _everything(moment: Snapshot, drafter: Drafter) -> ConditionalScorer:
    """The corrected score over the whole vocabulary, with every token as a child."""
    method = METHODS[OWN]
    assert method is not None
    every = Settings(OWN, candidates=None, child_cap=moment.draft.base_logits.shape[1])
    scorer = method.scorer(drafter, moment.draft, moment.anchor, every)
    assert isinstance(scorer, ConditionalScorer)
    return scorer


def path_chances(tree: DraftTree, target_probs: Floats) -> Floats:
    """[N + 1]: the target's probability of each node's whole path, of those [N + 1] of single tokens; the root's 1."""
    found = np.ones(len(tree) + 1)
    for node in range(1, len(tree) + 1):
        found[node] = found[tree.parents[node]] * target_probs[node]
    return found
