"""What a drafter learns from: teacher-forced blocks at random anchors, and the base-anchored loss.

Blocks follow DFlash (arXiv 2602.06036, section 4.2): each sees the target's features strictly before its
anchor and its own slots. The loss follows Domino (arXiv 2605.29707, section 4.3): (1 - lambda) * corrected +
lambda * base cross-entropy on the target's tokens, slot weights exp(-slot / gamma). This file does not know
optimisers, schedules or where rows come from.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..drafter import DrafterConfig, DraftModel
from .corpus import Batch


def block_mask(anchors: Tensor, width: int, block: int) -> Tensor:
    """What each slot sees: bool [B, 1, A * block, width + A * block], context first."""
    count = anchors.shape[1]
    owner = torch.arange(count, device=anchors.device).repeat_interleave(block)  # [A * block]
    before = torch.arange(width, device=anchors.device) < anchors[..., None]  # [B, A, width]
    context = before.repeat_interleave(block, dim=1)
    own = (owner[:, None] == owner).expand(len(anchors), -1, -1)
    return torch.cat([context, own], dim=2)[:, None]


def token_losses(rows: Tensor, labels: Tensor, output: Tensor) -> Tensor:
    """Cross-entropy [N] of labels [N] under `rows @ output.T`; rows [N, H], output [V, H]."""
    return F.cross_entropy(F.linear(rows, output).float(), labels, reduction="none")


def both_losses(rows: Tensor, low_rank: Tensor, labels: Tensor, output: Tensor, w2: Tensor) -> Tensor:
    """Base and corrected cross-entropy [2, N]; W2 [V, r] turns `low_rank` [N, r] into the correction."""
    base = F.linear(rows, output)
    final = base + F.linear(low_rank, w2)
    pair = [F.cross_entropy(logits.float(), labels, reduction="none") for logits in (base, final)]
    return torch.stack(pair)


class BlockLoss(nn.Module):
    """The trained model with its loss, as one module: what Accelerate wraps.

    `embedding` and `output` are the target's frozen matrices [V, H]; they are kept out of the parameters.
    """

    def __init__(self, model: DraftModel, embedding: Tensor, output: Tensor, gamma: float) -> None:
        super().__init__()
        self.model, self.gamma = model, gamma
        self._frozen = (embedding, output)
        self._token_losses, self._both_losses = token_losses, both_losses

    def compile(self) -> None:
        """Fuse the losses' passes over the vocabulary (they are most of the traffic on a GPU)."""
        self._token_losses = torch.compile(token_losses)
        self._both_losses = torch.compile(both_losses)

    def forward(self, features: Tensor, batch: Batch, base_weight: float) -> dict[str, Tensor]:
        """Weighted means over all slots of all blocks: `loss` (to minimise), `base`, `corrected`."""
        rows, tokens, weight = self._rows(features, batch)
        labels = tokens[..., 1:].flatten()
        if self.model.config.head is None:
            base = self._mean(self._token_losses(rows.flatten(0, 2), labels, self._frozen[1]), weight)
            return {"loss": base, "base": base.detach()}
        low_rank = self._low_rank(rows, tokens[..., :-1])
        pair = self._both_losses(
            rows.flatten(0, 2),
            low_rank.flatten(0, 2),
            labels,
            self._frozen[1],
            self.model.get_parameter("embed_proj.2.weight"),
        )
        base, corrected = self._mean(pair[0], weight), self._mean(pair[1], weight)
        loss = base_weight * base + (1 - base_weight) * corrected
        return {"loss": loss, "base": base.detach(), "corrected": corrected.detach()}

    @staticmethod
    def _mean(losses: Tensor, weight: Tensor) -> Tensor:
        return (losses * weight.flatten()).sum() / weight.sum()

    def _rows(self, features: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Hidden rows [B, A, L, H], the blocks' true tokens [B, A, L + 1], slot weights [B, A, L]."""
        config, (embedding, _) = self.model.config, self._frozen
        block, horizon = config.block_size, config.horizon
        slots = torch.arange(block, device=batch.ids.device)
        positions = batch.anchors[..., None] + slots  # [B, A, block]
        slot_ids = torch.full_like(positions, config.mask_token_id)
        slot_ids[..., 0] = batch.ids.gather(1, batch.anchors)
        context = self.model.context(
            features, torch.arange(features.shape[1], device=features.device).expand(len(features), -1)
        )
        hidden = self.model(
            F.embedding(slot_ids.flatten(1), embedding).to(features.dtype),
            positions.flatten(1),
            context,
            block_mask(batch.anchors, features.shape[1], block),
        ).unflatten(1, (-1, block))
        steps = torch.arange(horizon + 1, device=batch.ids.device)
        where = (batch.anchors[..., None] + steps).flatten(1)  # [B, A * (L + 1)]
        tokens = batch.ids.gather(1, where.clamp_max(batch.ids.shape[1] - 1)).view(*batch.anchors.shape, -1)
        inside = (where < batch.lengths[:, None]).view_as(tokens)[..., 1:]
        return hidden[:, :, block - horizon :], tokens, inside * torch.exp(-steps[:-1] / self.gamma)

    def _low_rank(self, rows: Tensor, prefix: Tensor) -> Tensor:
        """SiLU(W1 [hidden; GRU state]) [B, A, L, r], zero where the head leaves a depth uncorrected."""
        head = self.model.config.head
        assert head is not None
        embedded = F.embedding(prefix.flatten(0, 1), self._frozen[0]).to(rows.dtype)  # [B * A, L, H]
        states = self.model.prefix_gru(embedded)[0].view(*rows.shape[:3], -1)
        low_rank = self.model.embed_proj[:2](torch.cat([rows, states.to(rows.dtype)], dim=-1))
        corrected = torch.arange(rows.shape[2], device=rows.device) >= head.pure_draft_prefix_len
        return low_rank * corrected[:, None]

    @torch.no_grad()
    def accepted(self, features: Tensor, batch: Batch) -> Tensor:
        """Leading slots [B, A] whose greedy draft is the row's token: the chain's accepted length there.

        While every earlier draft is right, the true prefix is the drafted one, so no rollout is needed.
        """
        rows, tokens, weight = self._rows(features, batch)
        logits = F.linear(rows, self._frozen[1].to(rows.dtype))
        if self.model.config.head is not None:
            logits = logits + self.model.embed_proj[2](self._low_rank(rows, tokens[..., :-1]))
        right = (logits.argmax(-1) == tokens[..., 1:]) & (weight > 0)
        return right.long().cumprod(-1).sum(-1)


def fresh_model(config: DrafterConfig, seed: int) -> DraftModel:
    """A newly initialised model: normal weights of 0.02, and a W2 of zeros so that the base comes first."""
    torch.manual_seed(seed)
    model = DraftModel(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and "prefix_gru" not in name:
            nn.init.normal_(parameter, std=0.02)
    if config.head is not None:
        nn.init.zeros_(model.get_parameter("embed_proj.2.weight"))
    return model
