"""Decoding replayed on known text, for many texts at once: how many rounds a drafter would have needed.

At temperature 0 a method emits the target's own greedy text whatever it drafts, so on a text that is known already
no verification is needed: from each anchor the text itself says how many drafts would have been accepted. That makes
tau cheap enough to measure many drafters. `decode.py` is the real thing; a test holds the two together. This file
does not know files, training or statistics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..drafter import DominoHead
from .blocks import Blocks
from .corpus import Batch
from .losses import accepted

WALKS = {"dflash": ("dflash", "ddtree"), "domino": ("base", "domino", "marginal", "dominotree")}  # by kind


@dataclass(frozen=True)
class Walk:
    """What B texts took. `anchors` [B, R] are the positions at which rounds began, -1 after a text's last."""

    tokens: Tensor  # [B], emitted by rounds: all after the first
    rounds: Tensor  # [B]
    anchors: Tensor


@dataclass(frozen=True)
class TreeSize:
    """The tree's budget, and the candidates M of a corrected depth."""

    budget: int = 64
    candidates: int = 512


# Hidden rows [B, L, H], the text from the anchor on [B, L + 1], depths worth drafting [B] -> accepted length [B].
Accept = Callable[[Tensor, Tensor, Tensor], Tensor]


@torch.no_grad()
def walk(blocks: Blocks, features: Tensor, texts: Batch, method: str, size: TreeSize | None = None) -> Walk:
    """Go through texts as `method` (of WALKS) would decode them.

    `texts.anchors` [B, 1] are the positions of the first tokens to count from, those that prefill yields; features
    are [B, S, T * H]. What the texts hold beyond `lengths` is not looked at.
    """
    accept = _accept(blocks, method, size or TreeSize())
    context = blocks.context(features)
    anchors, last = texts.anchors.clone(), texts.lengths[:, None] - 1
    began, rounds = [], torch.zeros_like(texts.lengths)
    while (alive := anchors < last).any():
        began.append(torch.where(alive, anchors, -1))
        batch = Batch(texts.ids, texts.lengths, anchors)
        tokens = blocks.tokens(batch)
        hidden = blocks.hidden(context, tokens[..., 0], anchors)
        rounds += alive[:, 0]
        depths = (last - anchors)[:, 0] - 1  # the last token of all comes as a bonus
        anchors = torch.minimum(anchors + accept(hidden[:, 0], tokens[:, 0], depths)[:, None] + 1, last)
    everything = torch.cat(began, dim=1) if began else anchors.new_zeros(len(anchors), 0)
    return Walk((last - texts.anchors)[:, 0].clamp_min(0), rounds, everything)


def _accept(blocks: Blocks, method: str, size: TreeSize) -> Accept:
    def chain(hidden: Tensor, tokens: Tensor, depths: Tensor) -> Tensor:
        labels = tokens[:, None, 1:]
        logits = blocks.logits(hidden[:, None], tokens[:, None, :-1])
        return accepted(logits, labels, torch.ones_like(labels, dtype=torch.bool))[:, 0]

    def base_chain(hidden: Tensor, tokens: Tensor, depths: Tensor) -> Tensor:
        return accepted(blocks.base_logits(hidden), tokens[:, 1:], torch.ones_like(tokens[:, 1:], dtype=torch.bool))

    def marginal(hidden: Tensor, tokens: Tensor, depths: Tensor) -> Tensor:
        return tree_accepted(_Marginal(blocks, hidden, size), tokens, depths, size.budget)

    def conditional(hidden: Tensor, tokens: Tensor, depths: Tensor) -> Tensor:
        return tree_accepted(_Conditional(blocks, hidden, tokens[:, 0], size), tokens, depths, size.budget)

    return {
        "dflash": chain,
        "domino": chain,
        "base": base_chain,
        "ddtree": marginal,
        "marginal": marginal,
        "dominotree": conditional,
    }[method]


# --- Trees of many texts ---------------------------------------------------------------------------------------


def tree_accepted(scores: _Marginal | _Conditional, tokens: Tensor, depths: Tensor, budget: int) -> Tensor:
    """How deep the text [B, L + 1] goes down the best-first tree of `budget` nodes, `depths` [B] at most: [B].

    The sweep of `build.frontier` for B trees at once: the `budget` best of each depth are kept, which is all that can
    be in the tree, and at the end the `budget` best of all.
    """
    total = torch.zeros(len(tokens), 1, dtype=torch.float64, device=tokens.device)  # [B, W]
    on_text = torch.ones_like(total, dtype=torch.bool)
    kept_totals, kept_on_text = [], []
    for depth in range(1, tokens.shape[1]):
        ids, log_probs = scores.children(depth)  # [B, W, C]
        confirmed = on_text[..., None] & (ids == tokens[:, depth, None, None])
        score = (total[..., None] + log_probs).masked_fill((depth > depths)[:, None, None], -torch.inf)
        best = score.flatten(1).topk(min(budget, total.shape[1] * ids.shape[2]))
        total, on_text = best.values, confirmed.flatten(1).gather(1, best.indices)
        kept_totals.append(total)
        kept_on_text.append(on_text)
        scores.advance(best.indices // ids.shape[2], ids.flatten(1).gather(1, best.indices))
    tree = torch.cat(kept_totals, dim=1).topk(min(budget, sum(t.shape[1] for t in kept_totals))).indices
    return torch.cat(kept_on_text, dim=1).gather(1, tree).sum(1)


class _Marginal:
    """Each depth on its own, normalised over the whole vocabulary (scoring.MarginalScorer, for B blocks)."""

    def __init__(self, blocks: Blocks, hidden: Tensor, size: TreeSize) -> None:
        log_probs = blocks.base_logits(hidden).float().log_softmax(-1)
        self.table = log_probs.topk(min(size.budget, log_probs.shape[-1]))  # [B, L, C]
        self.lanes = 1

    def children(self, depth: int) -> tuple[Tensor, Tensor]:
        """Tokens and log-probabilities [B, W, C]."""
        tokens, log_probs = self.table.indices[:, None, depth - 1], self.table.values[:, None, depth - 1]
        return tokens.expand(-1, self.lanes, -1), log_probs.expand(-1, self.lanes, -1)

    def advance(self, parents: Tensor, tokens: Tensor) -> None:
        """Go on with these lanes [B, W]."""
        self.lanes = parents.shape[1]


class _Conditional:
    """The correction along each path, over M candidates (scoring.ConditionalScorer, for B blocks)."""

    def __init__(self, blocks: Blocks, hidden: Tensor, anchor_ids: Tensor, size: TreeSize) -> None:
        self.head = DominoHead(blocks.model, nn.Embedding.from_pretrained(blocks.embedding))
        base = blocks.base_logits(hidden).float()
        self.base, self.ids = base.topk(min(size.candidates, base.shape[-1]))  # [B, L, M]
        self.hidden = self.head.project_hidden(hidden)  # [B, L, r]
        self.cap = min(size.budget, self.ids.shape[2])
        start = self.head.initial().to(hidden.dtype).expand(len(anchor_ids), -1)
        self.states = self.head.advance(start, anchor_ids)[:, None]  # [B, W, G]

    def children(self, depth: int) -> tuple[Tensor, Tensor]:
        """Tokens and log-probabilities [B, W, C]."""
        logits, ids = self.base[:, None, depth - 1], self.ids[:, depth - 1]
        if depth > self.head.uncorrected:
            low_rank = nn.functional.silu(self.hidden[:, depth - 1, None] + self.head.project_states(self.states))
            rows = self.head.output_weight[ids].to(low_rank.dtype)  # [B, M, r]
            logits = logits + low_rank @ rows.transpose(1, 2)  # [B, W, M]
        best = logits.expand(-1, self.states.shape[1], -1).topk(self.cap)
        tokens = ids[:, None].expand_as(logits.expand(-1, self.states.shape[1], -1)).gather(2, best.indices)
        return tokens, best.values - logits.logsumexp(-1, keepdim=True)

    def advance(self, parents: Tensor, tokens: Tensor) -> None:
        """Go on with these lanes [B, W], each one token further."""
        states = self.states.gather(1, parents[..., None].expand(-1, -1, self.states.shape[2]))
        self.states = self.head.advance(states.flatten(0, 1), tokens.flatten()).view_as(states)
