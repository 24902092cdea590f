"""Two builders as captured graphs: `HeapGraph`, one replay a node, and `FrontierGraph`, one replay a tree.

Both stand for a method's scorer and keep buffers for one draft of fixed size. On a CPU they run the same operations
without a capture. This file does not know models; it takes drafts and gives trees.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ..build import heap
from ..drafter import Draft
from ..scoring import Children, Scorer
from ..tree import DraftTree
from .graphs import host_like, record, wait
from .sweep import Lanes, ScorerLanes, sweep, tree_of

ScorerOf = Callable[[Draft, Tensor], Scorer]  # of a draft and an anchor [1] on its device
LanesOf = Callable[[Draft, Tensor], Lanes]


class DraftBuffers:
    """One draft and its anchor at fixed places on the device."""

    def __init__(self, like: Draft) -> None:
        self.draft = Draft(torch.zeros_like(like.hidden), torch.zeros_like(like.base_logits))
        self.anchor = torch.zeros(1, dtype=torch.int64, device=like.hidden.device)

    def fill(self, draft: Draft, anchor: int) -> None:
        self.draft.hidden.copy_(draft.hidden)
        self.draft.base_logits.copy_(draft.base_logits)
        self.anchor.fill_(anchor)


class HeapGraph:
    """`build.heap` with its own heap and events, every pop's scoring one replay: the same tree to the last bit.

    Candidates and what else a round needs are gathered once, by a graph of their own. A state never leaves the
    device: the heap sees its slot. The design is the seed's, DominoTree (arXiv 2607.08642).
    """

    @torch.inference_mode()
    def __init__(self, scorer_of: ScorerOf, like: Draft, budget: int) -> None:
        self.buffers, self.scorer_of, self.budget = DraftBuffers(like), scorer_of, budget
        device = like.hidden.device
        self._scorer = scorer_of(self.buffers.draft, self.buffers.anchor)
        root = self._scorer.root()
        self._states = root.new_zeros(budget + 2, root.shape[1])  # a slot a node
        self.horizon, example = self._scorer.horizon, self._scorer.children(1, root)
        self._order = torch.zeros(3, dtype=torch.int64, device=device)  # parent's slot, own slot, own token
        self._order_host = host_like(self._order).zero_()
        self._children_host = Children(host_like(example.tokens), host_like(example.log_probs))
        self._begin = record(self._set_up, device)
        self._expand = {depth: record(partial(self._step, depth), device) for depth in range(1, self.horizon + 1)}

    @torch.inference_mode()
    def build(self, draft: Draft, anchor: int, budget: int | None = None) -> DraftTree:
        """The tree of `budget` nodes (those of the constructor, or fewer)."""
        self.buffers.fill(draft, anchor)
        self._begin()
        self._used = 0
        self._orders: dict[int, tuple[int, int]] = {}
        return heap(self, anchor, self.budget if budget is None else min(budget, self.budget))

    def _set_up(self) -> None:
        self._scorer = self.scorer_of(self.buffers.draft, self.buffers.anchor)
        self._states[:1] = self._scorer.root()

    def _step(self, depth: int) -> None:
        """The children, at `depth`, of the node that the order names."""
        self._order.copy_(self._order_host, non_blocking=True)
        parent, own, token = self._order.split(1)
        if depth == 1:
            state = self._states[:1]
        else:
            state = self._scorer.advance(self._states.index_select(0, parent), token)
            self._states.index_copy_(0, own, state)
        children = self._scorer.children(depth, state)
        self._children_host.tokens.copy_(children.tokens, non_blocking=True)
        self._children_host.log_probs.copy_(children.log_probs, non_blocking=True)

    # The heap's own view of it: a scorer whose states are slots.

    def root(self) -> Tensor:
        """Slot 0."""
        return torch.zeros(1, 1, dtype=torch.int64)

    def advance(self, states: Tensor, tokens: Tensor) -> Tensor:
        """The next free slot, to be filled when the children are asked for."""
        self._used += 1
        self._orders[self._used] = int(states), int(tokens)
        return torch.full((1, 1), self._used)

    def children(self, depth: int, states: Tensor) -> Children:
        """One replay, then a wait for its result."""
        own = int(states)
        parent, token = self._orders.get(own, (0, 0))
        for place, value in enumerate((parent, own, token)):
            self._order_host[place] = value
        self._expand[depth]()
        wait(self._order.device)
        return self._children_host


class FrontierGraph:
    """`sweep` as one captured graph and one copy to the host."""

    @torch.inference_mode()
    def __init__(self, lanes_of: LanesOf, like: Draft, budget: int) -> None:
        self.buffers, self.lanes_of, self.budget = DraftBuffers(like), lanes_of, budget
        self._device = like.hidden.device
        self._host = host_like(self._sweep())
        self._run = record(self._sweep_out, self._device)

    @classmethod
    def of_scorer(cls, scorer_of: ScorerOf, like: Draft, budget: int) -> FrontierGraph:
        """With the scorer's own tensor operations."""
        return cls(lambda draft, anchor: ScorerLanes(scorer_of(draft, anchor)), like, budget)

    @torch.inference_mode()
    def build(self, draft: Draft, anchor: int) -> DraftTree:
        """The tree of the constructor's budget."""
        return tree_of(self.packed(draft, anchor))

    @torch.inference_mode()
    def packed(self, draft: Draft, anchor: int) -> Tensor:
        """The same as `Swept.packed` on the host, until the next call: the tree before its checks."""
        self.buffers.fill(draft, anchor)
        self._run()
        wait(self._device)
        return self._host

    def _sweep(self) -> Tensor:
        lanes = self.lanes_of(self.buffers.draft, self.buffers.anchor)
        return sweep(lanes, self.buffers.anchor, self.budget).packed()

    def _sweep_out(self) -> None:
        self._host.copy_(self._sweep(), non_blocking=True)
