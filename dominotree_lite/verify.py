"""Verification: a tree as one pass of the target, and the walk that decides what is committed.

At every node on the way the target's own next token is drawn (the most likely one at temperature 0). If a
child carries it, the walk goes on there; if not, the token is emitted as the bonus and the walk ends. Each
emitted token is one fresh draw of the target after the right prefix, so the output's law is the target's for
any tree whatever (DDTree, arXiv 2604.12989, section 4). No ratio of probabilities appears: the drafts are not
samples, and treating them as such would be wrong. This file knows trees and logits, and no model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from .errors import InputError
from .tree import DraftTree

GREEDY_BELOW = 1e-5  # temperatures under this are 0: logits / T would overflow

Draw = Callable[[int], int]  # node -> the target's token after that node's path


@dataclass(frozen=True)
class TreeInputs:
    """A tree of N nodes as the target reads it. `visible` [N+1, N+1]: each row sees its path and itself."""

    tokens: Tensor  # [N+1] the anchor first
    positions: Tensor  # [N+1] absolute: siblings share one
    visible: Tensor  # [N+1, N+1] bool


def tree_inputs(tree: DraftTree, start: int, device: str | torch.device = "cpu") -> TreeInputs:
    """The inputs for a tree whose anchor stands at position `start`."""
    return TreeInputs(
        tokens=torch.tensor(tree.tokens, device=device),
        positions=torch.tensor(tree.depths, device=device) + start,
        visible=torch.tensor(tree.ancestors(), device=device),
    )


@dataclass(frozen=True)
class Walk:
    """The accepted nodes in order of depth (the root left out), and the token that follows the last one."""

    nodes: list[int]
    bonus: int

    def tokens(self, tree: DraftTree) -> list[int]:
        """What the round emits: the accepted tokens and the bonus."""
        return [int(tree.tokens[node]) for node in self.nodes] + [self.bonus]


def walk(tree: DraftTree, draw: Draw) -> Walk:
    """Follow the target through the tree; `draw` is called once a visited node."""
    nodes: list[int] = []
    node = 0
    while True:
        token = draw(node)
        child = tree.child(node, token)
        if child is None:
            return Walk(nodes, token)
        nodes.append(child)
        node = child


@dataclass(frozen=True)
class Sampling:
    """How the target's next token is chosen. Temperature 0 is greedy; 0 and 1 switch top-k and top-p off."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise InputError(f"temperature {self.temperature}: give 0 or more")
        if self.top_k < 0 or not 0 < self.top_p <= 1:
            raise InputError(f"top_k {self.top_k}, top_p {self.top_p}: give top_k >= 0 and 0 < top_p <= 1")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return self.temperature < GREEDY_BELOW

    def probabilities(self, logits: Tensor) -> Tensor:
        """The law [..., V] that tokens are drawn from at a temperature above 0; the order is T, top-k, top-p."""
        warpers = LogitsProcessorList([TemperatureLogitsWarper(float(self.temperature))])
        if self.top_k:
            warpers.append(TopKLogitsWarper(self.top_k))
        if self.top_p < 1:
            warpers.append(TopPLogitsWarper(self.top_p))
        flat = logits.reshape(-1, logits.shape[-1])
        no_ids: Any = None  # none of these looks at the tokens before
        return warpers(no_ids, flat).softmax(-1).view_as(logits)


def target_draws(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> Draw:
    """The draws for rows of logits [N+1, V]: all at once when greedy, else one a visited node."""
    if sampling.greedy:
        return logits.argmax(-1).tolist().__getitem__
    return lambda node: int(torch.multinomial(sampling.probabilities(logits[node]), 1, generator=generator))
