"""What a token costs at each depth of a round: one protocol, three scorers. It knows logits, but no tree.

Letters used throughout: L depths drafted, V vocabulary, M candidates kept at each depth, C children scored
for one parent, W parents scored in one call (lanes), H width of the drafter, G width of the head's state, r
rank of its correction. Depths count from 1. Log-probabilities are natural logs at temperature 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import silu

from .errors import InputError

FEW = 512  # values that are sorted sooner than searched


@dataclass(frozen=True)
class Children:
    """The best children of W parents, best first."""

    tokens: Tensor  # [W, C] int64
    log_probs: Tensor  # [W, C], of each child given its parent's whole path


class Scorer(Protocol):
    """Answers, for any path, which tokens may come next and how likely each is."""

    @property
    def horizon(self) -> int:
        """L, the deepest depth that can be asked for."""

    def root(self) -> Tensor:
        """[1, G]: the state of the path that holds only the anchor."""

    def children(self, depth: int, states: Tensor) -> Children:
        """The children at `depth` (1..L) of parents in these states [W, G]."""

    def advance(self, states: Tensor, tokens: Tensor) -> Tensor:
        """[W, G]: the states [W, G] after one more token each [W]."""


class CorrectionHead(Protocol):
    """What the scorers need of a Domino head.

    The correction of candidate c at depth d after a path with state s is
    output_weight[c] . silu(project_hidden(hidden)[d-1] + project_states(s)), added to the base logit.
    """

    @property
    def uncorrected(self) -> int:
        """How many leading depths keep their base logits (`pure_draft_prefix_len` in a published config)."""

    @property
    def output_weight(self) -> Tensor:
        """[V, r]"""

    def initial(self) -> Tensor:
        """[1, G]: the state before the anchor."""

    def advance(self, states: Tensor, tokens: Tensor) -> Tensor:
        """[W, G]: one GRU step on the embeddings of tokens [W]."""

    def project_hidden(self, hidden: Tensor) -> Tensor:
        """[L, r] of hidden rows [L, H]."""

    def project_states(self, states: Tensor) -> Tensor:
        """[W, r] of states [W, G]."""


def top(values: Tensor, count: int) -> Tensor:
    """Indices [..., count] of the largest of values [..., n], largest first, lowest index first among equals.

    `topk` alone leaves open which of several equal values it takes, and bf16 logits are full of equal values;
    a stable sort of a whole vocabulary takes ten times as long. So `topk` only finds the cut.
    """
    n = values.shape[-1]
    count = min(count, n)
    if count == 1:  # argmax takes the first of equals
        return values.argmax(dim=-1, keepdim=True)
    if count == n or (n <= FEW and values.device.type != "cpu"):
        return values.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    if values.device.type != "cpu":
        return _top_by_keys(values, count)
    found = values.topk(count + 1)
    distinct = (found.values.diff(dim=-1) < 0).all(dim=-1)  # then no two equals compete, neither inside nor at the cut
    indices = found.indices[..., :count]
    for row in (~distinct).nonzero():
        indices[tuple(row)] = _top_of_row(values[tuple(row)], count)
    return indices


def _top_of_row(row: Tensor, count: int) -> Tensor:
    """The same of one row [n], equals among its values or not."""
    kept = (~(row < row.topk(max(count, 1)).values[-1])).nonzero()[:, 0]
    return kept[row[kept].sort(descending=True, stable=True).indices[:count]]


def _top_by_keys(values: Tensor, count: int) -> Tensor:
    """All rows at once and in fixed shapes, as suits a GPU and its graphs.

    A second `topk`, over keys that put all above the cut first and then the lowest indices on it, has no ties to break.
    """
    n = values.shape[-1]
    cut = values.topk(max(count, 1)).values[..., -1:]
    lowest_first = torch.arange(n, 0, -1, dtype=torch.int32, device=values.device)
    keys = torch.where(values > cut, lowest_first + n, torch.where(values == cut, lowest_first, 0))
    chosen = keys.topk(count).indices  # above the cut by index, then on the cut by index
    order = values.gather(-1, chosen).sort(dim=-1, descending=True, stable=True).indices
    return chosen.gather(-1, order)


@dataclass(frozen=True)
class Candidates:
    """The M tokens each depth chooses among: those with the largest base logits."""

    ids: Tensor  # [L, M]
    logits: Tensor  # [L, M], uncorrected, at least float32

    @classmethod
    def of(cls, base_logits: Tensor, count: int | None) -> Candidates:
        """The `count` best at each depth of logits [L, V]; the whole vocabulary if None or at least V."""
        if base_logits.dim() != 2:
            raise InputError(f"base logits of shape {tuple(base_logits.shape)}: give one row a depth, [L, V]")
        if count is not None and count < 1:
            raise InputError(f"candidates {count} is below 1: give 1 or more, or None for the vocabulary")
        logits = base_logits.to(torch.promote_types(base_logits.dtype, torch.float32))
        depths, vocabulary = logits.shape
        if count is None or count >= vocabulary:
            return cls(torch.arange(vocabulary, device=logits.device).expand(depths, vocabulary), logits)
        ids = top(logits, count)
        return cls(ids, logits.gather(-1, ids))


def _children(ids: Tensor, logits: Tensor, child_cap: int) -> Children:
    """The best `child_cap` of candidates `ids` [W, M] by `logits` [W, M], normalised over these M alone.

    Candidates left out have no corrected logit, so no probability that could be compared with these exists.
    A parent with no possible candidate, or with logits that are not numbers, gets children of probability 0.
    """
    best = top(logits, child_cap)  # [W, C]
    log_probs = logits.gather(-1, best) - logits.logsumexp(-1, keepdim=True)
    return Children(ids.gather(-1, best), log_probs.nan_to_num(nan=-torch.inf, neginf=-torch.inf))


def _check_cap(child_cap: int) -> None:
    if child_cap < 0:
        raise InputError(f"child cap {child_cap} is negative: give the most children a node may have")


class _Correction:
    """A Domino head bound to one round: all that does not depend on the path is computed here, once."""

    def __init__(self, head: CorrectionHead, hidden: Tensor, candidates: Candidates) -> None:
        depths, count = candidates.ids.shape
        if len(hidden) != depths:
            raise InputError(f"{len(hidden)} hidden rows for {depths} rows of base logits: give one a depth")
        self.head, self.candidates = head, candidates
        self.hidden = head.project_hidden(hidden)  # [L, r]
        if count == len(head.output_weight):  # as it is: a float32 copy would cost V x r a round
            self.rows = head.output_weight.expand(depths, -1, -1)  # [L, V, r]
        else:
            self.rows = head.output_weight[candidates.ids].to(candidates.logits.dtype)  # [L, M, r]

    def root(self, anchor: int | Tensor) -> Tensor:
        start = self.head.initial()
        return self.head.advance(start, torch.as_tensor(anchor, device=start.device).reshape(1))  # [1, G]

    def logits(self, depth: int, states: Tensor) -> Tensor:
        """[W, M]: the corrected logits of the candidates at `depth` after paths in these states."""
        base = self.candidates.logits[depth - 1]  # [M]
        if depth <= self.head.uncorrected:
            return base.expand(len(states), -1)
        rows = self.rows[depth - 1]  # [M, r]
        features = silu(self.hidden[depth - 1] + self.head.project_states(states).to(base.dtype))  # [W, r]
        return base + (features.to(rows.dtype) @ rows.T).to(base.dtype)


class _Table:
    """A scorer that remembers nothing of the path: every parent of a depth has the same children."""

    def __init__(self, ids: Tensor, logits: Tensor, child_cap: int) -> None:
        _check_cap(child_cap)
        self.horizon = len(ids)
        self.table = _children(ids, logits, child_cap)  # [L, C], a row a depth

    def root(self) -> Tensor:
        return self.table.log_probs.new_zeros(1, 0)

    def children(self, depth: int, states: Tensor) -> Children:
        tokens, log_probs = self.table.tokens[depth - 1], self.table.log_probs[depth - 1]
        return Children(tokens.expand(len(states), -1), log_probs.expand(len(states), -1))

    def advance(self, states: Tensor, tokens: Tensor) -> Tensor:
        return states.new_zeros(len(tokens), 0)


class MarginalScorer(_Table):
    """Each depth on its own: the log-softmax of its base logits (DDTree, arXiv 2604.12989, Algorithm 1).

    Takes base logits [L, V]. Raises InputError for a child cap below 0 or `candidates` below 1.
    """

    def __init__(self, base_logits: Tensor, child_cap: int, candidates: int | None = None) -> None:
        kept = Candidates.of(base_logits, candidates)
        super().__init__(kept.ids, kept.logits, child_cap)


class GreedyPathScorer(_Table):
    """The correction along one path only, the greedy one, used for every other path too.

    The middle rung of DominoTree's conditioning ladder (arXiv 2607.08642): after L steps of the head it is as
    cheap as the marginal tree. Takes hidden rows [L, H], base logits [L, V] and the anchor's id (as a tensor [1] it
    is not looked at, so that a graph can capture this). Raises InputError for a child cap below 0, `candidates`
    below 1, or hidden rows that are not one a depth.
    """

    def __init__(
        self,
        head: CorrectionHead,
        hidden: Tensor,
        base_logits: Tensor,
        anchor: int | Tensor,
        child_cap: int,
        candidates: int | None = None,
    ) -> None:
        kept = Candidates.of(base_logits, candidates)
        correction = _Correction(head, hidden, kept)
        logits = kept.logits.clone()  # [L, M]
        state = correction.root(anchor)
        for depth in range(1, len(logits) + 1):
            logits[depth - 1] = correction.logits(depth, state)[0]
            state = head.advance(state, kept.ids[depth - 1, top(logits[depth - 1], 1)])
        super().__init__(kept.ids, logits, child_cap)


class ConditionalScorer:
    """The correction along each path: a child's probability given the very tokens above it.

    The head of Domino (arXiv 2605.29707) asked on every path of a tree (DominoTree, arXiv 2607.08642). Takes
    and raises the same as `GreedyPathScorer`. A state is the head's GRU after the anchor and the path's
    tokens.
    """

    def __init__(
        self,
        head: CorrectionHead,
        hidden: Tensor,
        base_logits: Tensor,
        anchor: int | Tensor,
        child_cap: int,
        candidates: int | None = None,
    ) -> None:
        _check_cap(child_cap)
        self.head, self.anchor, self.child_cap = head, anchor, child_cap
        self.kept = Candidates.of(base_logits, candidates)
        self.correction = _Correction(head, hidden, self.kept)
        self.horizon = len(base_logits)

    def root(self) -> Tensor:
        return self.correction.root(self.anchor)

    def children(self, depth: int, states: Tensor) -> Children:
        logits = self.correction.logits(depth, states)  # [W, M]
        return _children(self.kept.ids[depth - 1].expand(len(states), -1), logits, self.child_cap)

    def advance(self, states: Tensor, tokens: Tensor) -> Tensor:
        return self.head.advance(states, tokens)
