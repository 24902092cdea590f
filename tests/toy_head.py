"""A small random Domino head for tests, in float64, and the same head as an oracle without any shortcut.

`ToyHead` offers the pieces a scorer asks for; `naive_logits` runs the whole modules over the whole path.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn


class ToyHead(nn.Module):
    def __init__(self, vocabulary: int, uncorrected: int = 1, seed: int = 0, width: int = 5) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.uncorrected, self.width = uncorrected, width
        self.embedding = nn.Embedding(vocabulary, width)
        self.gru = nn.GRU(width, 4, bias=False, batch_first=True)
        self.w1 = nn.Linear(width + 4, 3, bias=False)
        self.w2 = nn.Linear(3, vocabulary, bias=False)
        self.calls = {"project_hidden": 0, "advance": 0}
        self.double().requires_grad_(False)
        self.w2.weight *= 6  # large enough to reorder candidates

    @property
    def output_weight(self) -> Tensor:
        return self.w2.weight

    def initial(self) -> Tensor:
        return self.w1.weight.new_zeros(1, 4)

    def advance(self, states: Tensor, tokens: Tensor) -> Tensor:
        self.calls["advance"] += 1
        return self.gru(self.embedding(tokens)[:, None], states[None].contiguous())[1][0]

    def project_hidden(self, hidden: Tensor) -> Tensor:
        self.calls["project_hidden"] += 1
        return hidden @ self.w1.weight[:, : self.width].T

    def project_states(self, states: Tensor) -> Tensor:
        return states @ self.w1.weight[:, self.width :].T


@dataclass
class Round:
    """What a drafter hands over: hidden rows [L, H], base logits [L, V] and the anchor."""

    head: ToyHead
    hidden: Tensor
    base_logits: Tensor
    anchor: int

    def to(self, dtype: torch.dtype) -> "Round":
        return Round(self.head.to(dtype), self.hidden.to(dtype), self.base_logits.to(dtype), self.anchor)


def random_round(vocabulary: int, depths: int, seed: int, uncorrected: int = 1) -> Round:
    head = ToyHead(vocabulary, uncorrected, seed)
    hidden = torch.randn(depths, head.width, dtype=torch.float64)
    base_logits = torch.randn(depths, vocabulary, dtype=torch.float64)
    return Round(head, hidden, base_logits, anchor=seed % vocabulary)


def naive_logits(given: Round, path: tuple[int, ...]) -> list[float]:
    """All corrected logits [V] of the token that follows the anchor and `path`."""
    head, depth = given.head, len(path) + 1
    base = given.base_logits[depth - 1]
    if depth <= head.uncorrected:
        return base.tolist()
    states, _ = head.gru(head.embedding(torch.tensor([[given.anchor, *path]])))
    both = torch.cat([given.hidden[depth - 1], states[0, -1]])
    return (base + head.w2(nn.functional.silu(head.w1(both)))).tolist()


def naive_children(
    base: list[float], logits: list[float], child_cap: int, candidates: int | None
) -> list[tuple[int, float]]:
    """(token, log-probability), best first: normalised over the best candidates of the base logits."""
    ids = sorted(range(len(base)), key=lambda token: (-base[token], token))[:candidates]
    largest = max(logits[token] for token in ids)
    total = math.fsum(math.exp(logits[token] - largest) for token in ids)
    ranked = sorted(ids, key=lambda token: (-logits[token], token))[:child_cap]
    return [(token, logits[token] - largest - math.log(total)) for token in ranked]
