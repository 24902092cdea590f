"""From a scorer to a draft tree: the best `budget` nodes, built in two ways. It knows no model and no target.

A node's score is the sum of the log-probabilities along its path, so a child never scores above its parent.
Taking the best node again and again therefore always gives a tree, and the one with the largest expected
accepted length (DDTree, arXiv 2604.12989, Propositions 1 and 2; with scores that depend on the path,
DominoTree, arXiv 2607.08642).

Both builders take the first `budget` nodes of one total order: higher score; then smaller depth; then the
smaller path of ranks, compared from the root (rank 0 is its parent's best child). So even equal scores give
one tree. It is stored in that order, and its first b nodes are the tree of budget b. `heap` is the one to
read: one node at a time. `frontier` is the one to run: one depth at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .errors import InputError
from .scoring import Children, Scorer, top
from .tree import DraftTree

# All scores kept so far [n], and those of the newest depth [W] -> which of the latter [W] are to have children.
Grow = Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.bool_]]


@dataclass(frozen=True, order=True)
class Entry:
    """A node that could be taken next. Entries compare by their first three fields; the best is smallest."""

    cost: float  # minus the score
    depth: int
    ranks: tuple[int, ...]  # of every node on the path among its siblings
    parent: int = field(compare=False)
    token: int = field(compare=False)

    @property
    def rank(self) -> int:
        """The place among its siblings, 0 for the best one and for the root."""
        return self.ranks[-1] if self.ranks else 0

    @property
    def log_prob(self) -> float:
        """The score of the path down to this node."""
        return 0.0 - self.cost  # minus alone would give a certain path the score -0.0


@dataclass(frozen=True)
class Pop:
    """One step of the heap: this node was taken, and these entries were pushed because of it."""

    node: int  # its index in the tree, 0 for the root
    parent: int
    depth: int
    token: int
    rank: int
    log_prob: float  # of the whole path
    pushed: tuple[Entry, ...]  # its first child and its next sibling, where they exist


def heap_events(scorer: Scorer, anchor: int, budget: int) -> Iterator[Pop]:
    """Grow the tree one node at a time and yield each step, the first of which takes the root.

    When a node is taken, only two others can newly be next in line, its first child and its next sibling: all
    the rest come after one that is waiting already. Raises InputError for a negative budget.
    """
    _check(budget)
    families: list[_Family] = []  # families[n] are the children of node n
    waiting = [Entry(0.0, 0, (), parent=-1, token=anchor)]
    while waiting and len(families) <= budget:
        entry, node = heappop(waiting), len(families)
        families.append(_family(scorer, node, entry, families))
        first = families[node].child(0)
        sibling = families[entry.parent].child(entry.rank + 1) if node else None
        pushed = tuple(e for e in (first, sibling) if e is not None)
        for other in pushed:
            heappush(waiting, other)
        yield Pop(node, entry.parent, entry.depth, entry.token, entry.rank, entry.log_prob, pushed)


def waiting_after(pops: Sequence[Pop]) -> list[Entry]:
    """What the heap holds after these first steps, best first."""
    taken = {(pop.parent, pop.rank) for pop in pops}
    pushed = [entry for pop in pops for entry in pop.pushed]
    return sorted(entry for entry in pushed if (entry.parent, entry.rank) not in taken)


def heap(scorer: Scorer, anchor: int, budget: int) -> DraftTree:
    """The best `budget` nodes, or all there are. Raises InputError for a negative budget."""
    pops = list(heap_events(scorer, anchor, budget))
    return DraftTree.from_lists(
        [pop.token for pop in pops],
        [pop.parent for pop in pops],
        [pop.depth for pop in pops],
        [pop.log_prob for pop in pops],
    )


def frontier(scorer: Scorer, anchor: int, budget: int, grow: Grow | None = None) -> DraftTree:
    """The same tree as `heap`, with one scorer call a depth. Raises InputError for a negative budget.

    `grow` is asked after each depth which of its nodes go on; all of them without it.

    All children of a depth's lanes go into a ledger; the next lanes are those of them among the best `budget`
    of the ledger so far. Nothing is lost: the ledger only grows, so what is outside its best stays outside,
    and whatever lies below an entry comes after it. A scorer may round a batch differently from a single
    lane, so the two trees can differ where two scores are closer than that rounding.
    """
    _check(budget)
    states = scorer.root()
    ledger = _Ledger.of_root(anchor, states.device)
    best = lanes = torch.zeros(1, dtype=torch.int64, device=states.device)  # ascending positions: the root's
    for depth in range(1, scorer.horizon + 1):
        start = len(ledger.scores)
        children = scorer.children(depth, states)
        ledger.add(lanes, children, depth)
        best = torch.cat([best, torch.arange(start, len(ledger.scores), device=best.device)])
        best = best[top(ledger.scores[best], budget + 1)].sort().values  # and the root
        lanes = best[best >= start]
        if grow is not None:
            kept, newest = ledger.scores[best[1:]].cpu().numpy(), ledger.scores[lanes].cpu().numpy()
            lanes = lanes[torch.from_numpy(grow(kept, newest)).to(lanes.device)]
        if depth == scorer.horizon or not len(lanes):
            break
        parent_lanes = (lanes - start) // children.tokens.shape[1]
        states = scorer.advance(states[parent_lanes], ledger.tokens[lanes])
    return ledger.tree(best)


def chain(scorer: Scorer, anchor: int, length: int | None = None) -> DraftTree:
    """The best child of the best child, down to the horizon or `length` nodes: what DFlash and Domino draft.

    Raises InputError for a negative length.
    """
    last = scorer.horizon if length is None else min(length, scorer.horizon)
    _check(last)
    states, tokens, scores = scorer.root(), [anchor], [0.0]
    for depth in range(1, last + 1):
        children = scorer.children(depth, states)
        log_probs = children.log_probs[0].tolist()
        if not log_probs or log_probs[0] == -torch.inf:
            break
        tokens.append(int(children.tokens[0, 0]))
        scores.append(scores[-1] + log_probs[0])
        states = scorer.advance(states, children.tokens[:, 0])
    return DraftTree.from_lists(tokens, list(range(-1, len(tokens) - 1)), list(range(len(tokens))), scores)


def _check(budget: int) -> None:
    if budget < 0:
        raise InputError(f"budget {budget} is negative: give the number of drafted nodes, 0 or more")


@dataclass(frozen=True)
class _Family:
    """The children a node of the tree could have, best first."""

    parent: int
    entry: Entry  # the parent's own
    state: Tensor  # [1, G], of the path down to the parent
    tokens: list[int]
    log_probs: list[float]

    def child(self, rank: int) -> Entry | None:
        # A token without probability is never drafted, and those after it are no likelier.
        if rank >= len(self.tokens) or self.log_probs[rank] == -torch.inf:
            return None
        cost = self.entry.cost - self.log_probs[rank]
        return Entry(cost, self.entry.depth + 1, (*self.entry.ranks, rank), self.parent, self.tokens[rank])


def _family(scorer: Scorer, node: int, entry: Entry, families: list[_Family]) -> _Family:
    if node:
        above = families[entry.parent].state
        state = scorer.advance(above, torch.tensor([entry.token], device=above.device))
    else:
        state = scorer.root()
    if entry.depth == scorer.horizon:
        return _Family(node, entry, state, [], [])
    children = scorer.children(entry.depth + 1, state)
    return _Family(node, entry, state, children.tokens[0].tolist(), children.log_probs[0].tolist())


@dataclass
class _Ledger:
    """Every node scored so far, by depth and then by path of ranks: the order in which equal scores rank."""

    tokens: Tensor  # [E]
    parents: Tensor  # [E], positions in the ledger
    depths: Tensor  # [E]
    scores: Tensor  # [E] float64 whatever the scorer's precision, as the numbers in `heap` are

    @classmethod
    def of_root(cls, anchor: int, device: torch.device) -> _Ledger:
        tokens, parents, depths = torch.tensor([[anchor], [-1], [0]], device=device)
        return cls(tokens, parents, depths, torch.zeros(1, dtype=torch.float64, device=device))

    def add(self, lanes: Tensor, children: Children, depth: int) -> None:
        """Append all children of the entries at positions `lanes`, parent by parent and best first."""
        tokens = children.tokens.flatten()  # [W * C]
        scores = self.scores[lanes, None] + children.log_probs  # [W, C]
        self.tokens = torch.cat([self.tokens, tokens])
        self.parents = torch.cat([self.parents, lanes.repeat_interleave(children.tokens.shape[1])])
        self.depths = torch.cat([self.depths, torch.full_like(tokens, depth)])
        self.scores = torch.cat([self.scores, scores.flatten()])

    def tree(self, kept: Tensor) -> DraftTree:
        """The tree of the entries at these ascending positions, the root among them, best first."""
        kept = kept[self.scores[kept] > -torch.inf]
        kept = kept[top(self.scores[kept], len(kept))]
        place = torch.full_like(self.tokens, -1)
        place[kept] = torch.arange(len(kept), device=kept.device)
        parents = place[self.parents[kept]]
        parents[0] = -1  # the root has none
        columns = self.tokens[kept], parents, self.depths[kept], self.scores[kept]
        return DraftTree.from_lists(*(column.tolist() for column in columns))
