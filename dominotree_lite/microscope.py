"""Under a microscope: what one pass over many rows says, beside what plain decoding says, logit by logit.

The two are the same numbers up to rounding, since a kernel adds up in another order for another number of rows.
This file measures that rounding, and what is more than rounding. It draws nothing, and it takes texts and trees
as it finds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .decode import Result, Round
from .errors import InputError
from .target import Context, Target
from .tree import DraftTree
from .verify import TreeInputs, tree_inputs


@torch.inference_mode()
def pass_logits(target: Target, before: list[int], inputs: TreeInputs) -> Tensor:
    """Logits [N+1, V] of one pass over a tree's inputs, right or wrong, after the committed tokens `before`."""
    context = Context()
    target.prefill(context, before)
    return target.verify(context, inputs.tokens, inputs.positions, inputs.visible).logits


@torch.inference_mode()
def path_logits(target: Target, before: list[int], tree: DraftTree) -> Tensor:
    """The oracle for `pass_logits` [N+1, V]: each path decoded on its own, a token a pass, without a mask."""
    rows: dict[int, Tensor] = {}
    parents = set(tree.parents.tolist())
    for leaf in (node for node in range(len(tree) + 1) if node not in parents):
        context = Context()
        target.prefill(context, before)
        for node in [0, *tree.path(leaf)]:
            rows[node] = _one(target, context, int(tree.tokens[node]))
    return torch.stack([rows[node] for node in range(len(tree) + 1)])


def _one(target: Target, context: Context, token: int) -> Tensor:
    """Logits [V] after one more token, which is committed."""
    tokens = torch.tensor([token], device=target.device)
    logits = target.verify(context, tokens, torch.full_like(tokens, context.length), None).logits[0]
    context.commit([0])
    return logits


@torch.inference_mode()
def commit_logits(target: Target, before: list[int], tree: DraftTree, bonus: int, rows: list[int]) -> Tensor:
    """Logits [V] after the bonus of a round, if these rows of its tree's pass, right or wrong, are committed."""
    context, inputs = Context(), tree_inputs(tree, len(before), target.device)
    target.prefill(context, before)
    target.verify(context, inputs.tokens, inputs.positions, inputs.visible)
    context.commit(rows)
    return _one(target, context, bonus)


@torch.inference_mode()
def reread(target: Target, prompt_ids: list[int], tokens: Sequence[int], rows: int) -> Tensor:
    """Logits [n, V] that decide each of n tokens of a text, when it is read `rows` tokens a pass.

    One row a pass is plain decoding; more are what verification does with a text that is accepted throughout.
    Row 0 comes from the prompt. Raises InputError for no tokens and for less than one row.
    """
    if rows < 1 or not tokens:
        raise InputError(f"{rows} rows a pass, {len(tokens)} tokens: give one or more of each")
    context = Context()
    found = [target.prefill(context, prompt_ids).logits]
    for first in range(0, len(tokens) - 1, rows):
        piece = torch.tensor(tokens[first : min(first + rows, len(tokens) - 1)], device=target.device)
        count = len(piece)
        visible = torch.ones(count, count, dtype=torch.bool, device=target.device).tril() if count > 1 else None
        positions = torch.arange(count, device=target.device) + context.length
        found.append(target.verify(context, piece, positions, visible).logits)
        context.commit(list(range(count)))
    return torch.cat(found)


@dataclass(frozen=True)
class Rounding:
    """Two readings of a text of n tokens, place by place; the first reading names the two best tokens."""

    gap: NDArray[np.float64]  # [n] logit of the best token minus that of the second, in the first reading
    change: NDArray[np.float64]  # [n] by how much that gap differs in the second reading
    flipped: NDArray[np.bool_]  # [n] whether the second reading has another best token

    @classmethod
    def between(cls, first: Tensor, second: Tensor) -> Rounding:
        """Of two readings' logits [n, V]."""
        best, ids = first.double().topk(2, dim=-1)
        other = second.double().gather(-1, ids)
        gap, again = best[:, 0] - best[:, 1], other[:, 0] - other[:, 1]
        # argmax, not ids[:, 0]: of equal logits they may take different ones, and decoding takes argmax's
        flipped = first.argmax(-1) != second.argmax(-1)
        return cls(gap.cpu().numpy(), (again - gap).abs().cpu().numpy(), flipped.cpu().numpy())


def turning_round(result: Result) -> Round:
    """The first round whose accepted path skips a row; if none does, the one with the longest path.

    Where a path skips a row, what is to be kept of the cache is not its front. Raises InputError if the result
    has no round.
    """
    if not result.rounds:
        raise InputError("the text has one token, so there is no round to look at: ask for more new tokens")
    turns = (one for one in result.rounds if one.accepted != list(range(1, len(one.accepted) + 1)))
    return next(turns, max(result.rounds, key=lambda one: len(one.accepted)))
