"""Many draft blocks of many rows at once, as training and its measurements need them.

A block sees the target's features strictly before its anchor and its own slots (DFlash, arXiv 2602.06036, section
4.2); the head reads a prefix of tokens, true or drafted (Domino, arXiv 2605.29707, sections 4.2 and 4.3). This file
does not know losses, optimisers or where rows come from.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..drafter import DraftModel, KeyValue
from .corpus import Batch


def block_mask(anchors: Tensor, width: int, block: int) -> Tensor:
    """What each slot sees: bool [B, 1, A * block, width + A * block], context first."""
    count = anchors.shape[1]
    owner = torch.arange(count, device=anchors.device).repeat_interleave(block)  # [A * block]
    before = torch.arange(width, device=anchors.device) < anchors[..., None]  # [B, A, width]
    context = before.repeat_interleave(block, dim=1)
    own = (owner[:, None] == owner).expand(len(anchors), -1, -1)
    return torch.cat([context, own], dim=2)[:, None]


class Blocks:
    """A draft model with the target's two frozen matrices [V, H], asked for blocks. Holds no parameters of its own."""

    def __init__(self, model: DraftModel, embedding: Tensor, output: Tensor) -> None:
        self.model, self.embedding, self.output = model, embedding, output
        self.head, self.horizon = model.config.head, model.config.horizon

    def context(self, features: Tensor) -> list[KeyValue]:
        """Keys and values a layer of rows of features [B, S, T * H], each from position 0 on."""
        positions = torch.arange(features.shape[1], device=features.device)
        return self.model.context(features, positions.expand(len(features), -1))

    def hidden(self, context: list[KeyValue], anchor_ids: Tensor, anchors: Tensor) -> Tensor:
        """Hidden rows [B, A, L, H] of blocks after tokens `anchor_ids` at positions `anchors`, both [B, A]."""
        config, width = self.model.config, context[0][0].shape[2]
        positions = anchors[..., None] + torch.arange(config.block_size, device=anchors.device)  # [B, A, block]
        slot_ids = torch.full_like(positions, config.mask_token_id)
        slot_ids[..., 0] = anchor_ids
        rows = self.model(
            F.embedding(slot_ids.flatten(1), self.embedding).to(context[0][1].dtype),
            positions.flatten(1),
            context,
            block_mask(anchors, width, config.block_size),
        )
        return rows.unflatten(1, (-1, config.block_size))[:, :, config.block_size - self.horizon :]

    def tokens(self, batch: Batch) -> Tensor:
        """The row's own tokens [B, A, L + 1] from each anchor on; any token where the row has ended."""
        return batch.ids.gather(1, self._places(batch).clamp_max(batch.ids.shape[1] - 1)).view(*batch.anchors.shape, -1)

    def inside(self, batch: Batch) -> Tensor:
        """Bool [B, A, L]: is the token that a slot predicts part of the row?"""
        return (self._places(batch) < batch.lengths[:, None]).view(*batch.anchors.shape, -1)[..., 1:]

    def _places(self, batch: Batch) -> Tensor:
        steps = torch.arange(self.horizon + 1, device=batch.ids.device)
        return (batch.anchors[..., None] + steps).flatten(1)  # [B, A * (L + 1)]

    def low_rank(self, hidden: Tensor, prefix: Tensor) -> Tensor:
        """SiLU(W1 [hidden; GRU state]) [B, A, L, r] after prefixes [B, A, L]; zero at uncorrected depths."""
        assert self.head is not None
        embedded = F.embedding(prefix.flatten(0, 1), self.embedding).to(hidden.dtype)  # [B * A, L, H]
        states = self.model.prefix_gru(embedded)[0].view(*hidden.shape[:3], -1)
        low_rank = self.model.embed_proj[:2](torch.cat([hidden, states.to(hidden.dtype)], dim=-1))
        corrected = torch.arange(hidden.shape[2], device=hidden.device) >= self.head.pure_draft_prefix_len
        return low_rank * corrected[:, None]

    def base_logits(self, hidden: Tensor) -> Tensor:
        """[..., V] of hidden rows [..., H]."""
        return F.linear(hidden, self.output.to(hidden.dtype))

    def logits(self, hidden: Tensor, prefix: Tensor) -> Tensor:
        """What drafts are chosen by, [B, A, L, V]: the base's logits, corrected where there is a head."""
        base = self.base_logits(hidden)
        return base if self.head is None else base + self.model.embed_proj[2](self.low_rank(hidden, prefix))

    @torch.no_grad()
    def rollout(self, hidden: Tensor, anchor_ids: Tensor) -> Tensor:
        """Prefixes [B, A, L] of the drafter's own making: the anchor, then its greedy drafts one after another."""
        assert self.head is not None
        base = self.base_logits(hidden)
        weights = [self.model.get_parameter(f"prefix_gru.weight_{part}_l0") for part in ("ih", "hh")]
        prefix = [anchor_ids.flatten()]
        state = hidden.new_zeros(len(prefix[0]), self.head.gru_hidden_dim)
        for depth in range(self.horizon - 1):
            state = torch.gru_cell(F.embedding(prefix[-1], self.embedding).to(state.dtype), state, *weights)
            logits = base[:, :, depth].flatten(0, 1)  # [B * A, V]
            if depth >= self.head.pure_draft_prefix_len:
                row = torch.cat([hidden[:, :, depth].flatten(0, 1), state.to(hidden.dtype)], dim=-1)
                logits = logits + self.model.embed_proj(row)
            prefix.append(logits.argmax(-1))
        return torch.stack(prefix, dim=-1).view(*anchor_ids.shape, -1)
