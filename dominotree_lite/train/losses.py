"""What a drafter learns from a batch: the base-anchored loss, and its variants by configuration.

The loss is Domino's (arXiv 2605.29707, section 4.3), (1 - lambda) * corrected + lambda * base, each a weighted mean
over the slots of all blocks, slot weights exp(-slot / gamma) as DFlash has them (arXiv 2602.06036, section 4.2). This
file does not know optimisers, schedules or where rows come from.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..drafter import DrafterConfig, DraftModel
from ..errors import InputError
from ..target import Reading
from .blocks import Blocks
from .corpus import Batch

LABELS = ("text", "argmax", "soft")
PREFIXES = ("text", "drafted")
DEPTH_WEIGHTS = ("decay", "reached")


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """What is compared with what.

    Attributes:
        gamma: of the slot weights exp(-slot / gamma); infinity: all slots alike.
        labels: "text", the row's own tokens; "argmax", what the target likes best after the row's own prefix;
            "soft", the target's whole distribution there.
        prefix: what the head reads: "text" (teacher forcing) or "drafted", the drafter's own greedy drafts
            (training-time test; the backbone gets no gradient through their choice).
        depth_weights: of the corrected loss: "decay", or "reached", the decay times how likely the drafter
            itself thinks the tokens before the slot, for a chain reaches a slot only if all those were right.
    """

    gamma: float = 7.0
    labels: str = "text"
    prefix: str = "text"
    depth_weights: str = "decay"

    def __post_init__(self) -> None:
        if self.gamma <= 0:
            raise InputError(f"gamma {self.gamma} must be positive")
        for name, known in (("labels", LABELS), ("prefix", PREFIXES), ("depth_weights", DEPTH_WEIGHTS)):
            if getattr(self, name) not in known:
                raise InputError(f"no {name} {getattr(self, name)!r}; there are {', '.join(known)}")


def text_losses(logits: list[Tensor], labels: Tensor) -> Tensor:
    """Cross-entropies [K, N] of tokens `labels` [N] under each of K logits [N, V]."""
    return torch.stack([F.cross_entropy(each.float(), labels, reduction="none") for each in logits])


def soft_losses(logits: list[Tensor], teacher: Tensor) -> Tensor:
    """Cross-entropies [K, N] of the target's distribution, of logits `teacher` [N, V], under each of K logits."""
    chances = teacher.float().softmax(-1)
    return torch.stack([-(chances * each.float().log_softmax(-1)).sum(-1) for each in logits])


def slot_losses(hidden: Tensor, output: Tensor, correction: list[Tensor], labels: Tensor) -> Tensor:
    """Losses [K, N] of the base and, where `correction` is [low rank [N, r], W2 [V, r]], of the corrected logits.

    `hidden` [N, H]; `output` [V, H]; `labels` are tokens [N], or the target's last hidden rows [N, H].
    """
    logits = [F.linear(hidden, output)]
    if correction:
        logits.append(logits[0] + F.linear(*correction))
    if labels.is_floating_point():
        return soft_losses(logits, F.linear(labels, output))
    return text_losses(logits, labels)


class BlockLoss(nn.Module):
    """The trained model with its loss, as one module: what Accelerate wraps.

    `embedding` and `output` are the target's frozen matrices [V, H]; they are kept out of the parameters.
    """

    def __init__(self, model: DraftModel, embedding: Tensor, output: Tensor, config: LossConfig) -> None:
        super().__init__()
        self.model, self.config, self.blocks = model, config, Blocks(model, embedding, output)
        self._slot_losses = slot_losses

    def compile(self) -> None:
        """Fuse the losses' passes over the vocabulary (much of the traffic on a GPU) and those inside a layer."""
        self._slot_losses = torch.compile(slot_losses, dynamic=False)
        for layer in self.model.layers:
            layer.compile(dynamic=True)  # contexts differ in width

    def forward(self, reading: Reading, batch: Batch, base_weight: float) -> dict[str, Tensor]:
        """Weighted means over all slots of all blocks: `loss` (to minimise), `base`, `corrected`."""
        blocks, tokens = self.blocks, self.blocks.tokens(batch)
        hidden = blocks.hidden(blocks.context(reading.features), tokens[..., 0], batch.anchors)
        correction = []
        if blocks.head is not None:
            drafted = self.config.prefix == "drafted"
            prefix = blocks.rollout(hidden.detach(), tokens[..., 0]) if drafted else tokens[..., :-1]
            low_rank = blocks.low_rank(hidden, prefix).flatten(0, 2)
            correction = [low_rank, self.model.get_parameter("embed_proj.2.weight").to(low_rank.dtype)]
        labels = self._labels(reading, batch, tokens)
        losses = self._slot_losses(hidden.flatten(0, 2), self._output(hidden), correction, labels)
        decay = self._decay(batch)
        base = _mean(losses[0], decay)
        if blocks.head is None:
            return {"loss": base, "base": base.detach()}
        corrected = _mean(losses[1], self._corrected_weight(decay, losses[1]))
        loss = base_weight * base + (1 - base_weight) * corrected
        return {"loss": loss, "base": base.detach(), "corrected": corrected.detach()}

    def _output(self, hidden: Tensor) -> Tensor:
        return self.blocks.output.to(hidden.dtype)

    def _labels(self, reading: Reading, batch: Batch, tokens: Tensor) -> Tensor:
        """Tokens [N], or the target's last hidden rows [N, H] where its whole distribution is the label."""
        if self.config.labels == "text":
            return tokens[..., 1:].flatten()
        before = batch.anchors[..., None] + torch.arange(self.blocks.horizon, device=batch.ids.device)  # [B, A, L]
        places = before.clamp_max(reading.final.shape[1] - 1).flatten(1)
        rows = reading.final.gather(1, places[..., None].expand(-1, -1, reading.final.shape[2])).flatten(0, 1)
        return rows if self.config.labels == "soft" else F.linear(rows, self._output(rows)).argmax(-1)

    def _decay(self, batch: Batch) -> Tensor:
        """Slot weights [B, A, L], 0 beyond the end of a row."""
        slots = torch.arange(self.blocks.horizon, device=batch.ids.device)
        return self.blocks.inside(batch) * torch.exp(-slots / self.config.gamma)

    def _corrected_weight(self, decay: Tensor, losses: Tensor) -> Tensor:
        if self.config.depth_weights == "decay":
            return decay
        before = losses.detach().view_as(decay).cumsum(-1)[..., :-1]
        return decay * F.pad(torch.exp(-before), (1, 0), value=1.0)

    @torch.no_grad()
    def measure(self, reading: Reading, batch: Batch) -> dict[str, Tensor]:
        """Against the row's own tokens, whatever is trained on: `base`, `corrected`, `base_tau`, `tau`.

        The two tau are 1 + the mean accepted length of a chain drafted at the anchors, by the base and by all.
        """
        blocks, tokens = self.blocks, self.blocks.tokens(batch)
        hidden = blocks.hidden(blocks.context(reading.features), tokens[..., 0], batch.anchors)
        base = blocks.base_logits(hidden)
        found = (
            {"base": base}
            if blocks.head is None
            else {"base": base, "corrected": blocks.logits(hidden, tokens[..., :-1])}
        )
        weight, labels = self._decay(batch), tokens[..., 1:]
        means = {name: _mean(text_losses([x.flatten(0, 2)], labels.flatten())[0], weight) for name, x in found.items()}
        lengths = {name: accepted(x, labels, weight > 0) for name, x in found.items()}
        means["base_tau"] = 1 + lengths["base"].float().mean()
        means["tau"] = 1 + list(lengths.values())[-1].float().mean()
        return means


def accepted(logits: Tensor, labels: Tensor, inside: Tensor) -> Tensor:
    """Leading slots [B, A] whose likeliest token is the label: logits [B, A, L, V], the others [B, A, L].

    While every earlier draft is right, the true prefix is the drafted one, so no rollout is needed.
    """
    return ((logits.argmax(-1) == labels) & inside).long().cumprod(-1).sum(-1)


def _mean(losses: Tensor, weight: Tensor) -> Tensor:
    return (losses * weight.flatten()).sum() / weight.sum()


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
