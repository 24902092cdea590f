"""Lanes of the conditional scorer on Triton kernels: nothing of the size lanes x vocabulary is ever written.

With few candidates one kernel scores a depth's children whole. With many, the children are seen twice: first only the
largest logit and the sum of each lane's tiles of candidates; then the best `count` pairs of lane and tile, computed
again. A child among the best `count` lies in one of these pairs, since every pair that comes before its own holds a
child that comes before it. The pairs are found in the same way, by groups of tiles. This file needs Triton; it knows
no trees.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from ..drafter import DominoHead, Draft
from ..scoring import top
from . import kernels
from .sweep import Chosen

FEW = 128  # candidates that are scored all at once
TILE = 64  # of more, candidates scored side by side
GROUP = 32  # tiles
MOST_LANES = 2**16
MOST = 2**30  # comparisons of keys for which counting beats sorting
STEP = 64  # of the rank
ROWS = 8192  # of the vocabulary, while the input table is filled


class FusedHead:
    """A head and what outlives a round: its GRU's input projection of the whole vocabulary."""

    @torch.inference_mode()
    def __init__(self, head: DominoHead) -> None:
        self.head = head
        weight = head.input_weight
        self.vocabulary = len(head.output_weight)
        self.ids = torch.arange(self.vocabulary, device=weight.device)
        self.lanes = 0x7FFFFFFF - torch.arange(MOST_LANES, device=weight.device)  # as keys write their places
        self.table = torch.empty(self.vocabulary, len(weight), dtype=weight.dtype, device=weight.device)  # [V, 3G]
        for part, ids in zip(self.table.split(ROWS), self.ids.split(ROWS), strict=True):
            part.copy_(F.linear(head.embedding(ids).to(weight.dtype), weight))


class FusedLanes:
    """The paths of one depth in float32 or less; `candidates` None is the whole vocabulary. Children are not capped."""

    def __init__(self, fused: FusedHead, draft: Draft, anchor: Tensor, candidates: int | None) -> None:
        self.fused, self.head = fused, fused.head
        self.horizon = len(draft.base_logits)
        self.hidden = self.head.project_hidden(draft.hidden)  # [L, r]
        self.rank = self.hidden.shape[1]
        if candidates is None or candidates >= fused.vocabulary:
            self.sorted = False
            self.width, self.ids = fused.vocabulary, fused.ids.expand(self.horizon, -1)
            self.base = draft.base_logits  # [L, V]
            self.rows = self.head.output_weight.expand(self.horizon, -1, -1)
        else:
            self.sorted = True
            self.width, self.ids = candidates, best_places(draft.base_logits, candidates)  # [L, M]
            self.base = draft.base_logits.gather(-1, self.ids).float()
            self.rows = self.head.output_weight[self.ids].float()  # [L, M, r]

    def start(self, anchor: Tensor) -> None:
        """The head's state after the anchor."""
        self.states = self.head.advance(self.head.initial(), anchor)

    def choose(self, depth: int, scores: Tensor, count: int) -> Chosen:
        """As `sweep.Lanes` says; best first."""
        if depth <= self.head.uncorrected:
            return self._uncorrected(depth, scores, count)
        projected = self.head.project_states(self.states)  # [W, r]
        count = min(count, len(scores) * self.width)
        if self.width <= FEW:
            return self._few(depth, scores, projected, count)
        return self._many(depth, scores, projected, count)

    def advance(self, chosen: Chosen) -> None:
        """One GRU step of each chosen child."""
        carried = F.linear(self.states.index_select(0, chosen.lanes), self.head.state_weight)
        size = self.states.shape[1]
        out = torch.empty(len(chosen.lanes), size, dtype=self.states.dtype, device=self.states.device)
        block = min(1024, triton.next_power_of_2(size))
        kernels.gru_step[len(out), triton.cdiv(size, block)](
            self.states, chosen.lanes, chosen.tokens, self.fused.table, carried, out, size, WIDTH=block
        )
        self.states = out

    def _uncorrected(self, depth: int, scores: Tensor, count: int) -> Chosen:
        """Every lane has the same children, those of the base logits."""
        base = self.base[depth - 1].float()
        if self.sorted:
            places = torch.arange(min(count, self.width), device=base.device)
        else:
            places = best_places(base[None], min(count, self.width))[0]
        log_probs = base[places] - base.logsumexp(-1)
        paths = (scores[:, None] + log_probs.nan_to_num(nan=-torch.inf, neginf=-torch.inf)).flatten()
        best = top(paths, count).sort().values
        column = best % len(places)
        return Chosen(best // len(places), self.ids[depth - 1][places[column]], paths[best])

    def _few(self, depth: int, scores: Tensor, projected: Tensor, count: int) -> Chosen:
        lanes, block = len(scores), 16
        log_probs = torch.empty(lanes, self.width, device=scores.device)
        keys = torch.empty(1, lanes * self.width, dtype=torch.int64, device=scores.device)
        kernels.few_children[(triton.cdiv(lanes, block),)](
            self.hidden[depth - 1], projected, self.rows[depth - 1], self.base[depth - 1], scores, log_probs, keys,
            lanes, self.width, self.rank,
            LANES=block, WIDTH=max(16, triton.next_power_of_2(self.width)), STEP=_step(self.rank),
        )  # fmt: skip
        every = self.fused.lanes[:lanes]  # a lane is its own pair
        return self._chosen(depth, scores, log_probs, best_keys(keys, count), every, 1, self.width)

    def _many(self, depth: int, scores: Tensor, projected: Tensor, count: int) -> Chosen:
        lanes, device = len(scores), scores.device
        tiles, block = triton.cdiv(self.width, TILE), 64 if len(scores) > 16 else 16
        hidden, rows, base = self.hidden[depth - 1], self.rows[depth - 1], self.base[depth - 1]
        step = _step(self.rank)
        largest, sums = torch.empty(2, lanes, tiles, device=device)
        kernels.tile_sums[triton.cdiv(lanes, block), tiles](
            hidden, projected, rows, base, largest, sums, lanes, self.width, self.rank, tiles,
            LANES=block, TILE=TILE, STEP=step,
        )  # fmt: skip
        groups = triton.cdiv(tiles, GROUP)
        totals, bounds = torch.empty(lanes, device=device), torch.empty(lanes, tiles, device=device)
        keys = torch.empty(1, lanes * groups, dtype=torch.int64, device=device)
        kernels.lane_groups[(lanes,)](
            largest, sums, scores, totals, bounds, keys, tiles, groups,
            GROUPS=triton.next_power_of_2(groups), GROUP=GROUP,
        )  # fmt: skip
        number = min(count, lanes * groups)
        best = best_keys(keys, number)
        keys = torch.empty(1, number * GROUP, dtype=torch.int64, device=device)
        kernels.group_tiles[(number,)](best, bounds, keys, tiles, groups, GROUP=GROUP)
        number = min(count, lanes * tiles)
        pairs = best_keys(keys, number)
        log_probs = torch.empty(number, TILE, device=device)
        keys = torch.empty(1, number * TILE, dtype=torch.int64, device=device)
        kernels.tile_children[(number,)](
            pairs, hidden, projected, rows, base, scores, totals, log_probs, keys, self.width, self.rank, tiles,
            TILE=TILE, STEP=step,
        )  # fmt: skip
        return self._chosen(depth, scores, log_probs, best_keys(keys, count), pairs, tiles, TILE)

    def _chosen(
        self, depth: int, scores: Tensor, log_probs: Tensor, best: Tensor, pairs: Tensor, tiles: int, tile: int
    ) -> Chosen:
        count = len(best)
        lanes, tokens = torch.empty(2, count, dtype=torch.int64, device=scores.device)
        paths = torch.empty(count, dtype=torch.float64, device=scores.device)
        kernels.chosen_children[(1,)](
            best, pairs, self.ids[depth - 1], scores, log_probs, lanes, tokens, paths, count, tiles,
            TILE=tile, COUNT=triton.next_power_of_2(count),
        )  # fmt: skip
        return Chosen(lanes, tokens, paths)


def best_keys(keys: Tensor, count: int) -> Tensor:
    """The best `count` of each row of keys [B, n], best first: [B, count], or [count] of a single row."""
    rows, width = keys.shape
    best = torch.empty(rows, count, dtype=torch.int64, device=keys.device)
    kernels.best_keys[triton.cdiv(width, 32), rows](keys, best, width, count, OWN=32, OTHER=128)
    return best[0] if rows == 1 else best


def best_places(values: Tensor, count: int) -> Tensor:
    """[B, count]: where each row of values [B, n] is largest, as `scoring.top` orders them."""
    rows, width = values.shape
    tiles = triton.cdiv(width, TILE)
    number = min(count, tiles)
    if rows * (number * TILE) ** 2 > MOST:
        return top(values, count)
    values = values.contiguous()
    keys = torch.empty(rows, tiles, dtype=torch.int64, device=values.device)
    kernels.row_tiles[tiles, rows](values, keys, width, tiles, TILE=TILE)
    best = best_keys(keys, number)
    keys = torch.empty(rows, number * TILE, dtype=torch.int64, device=values.device)
    kernels.row_keys[number, rows](values, best, keys, width, TILE=TILE)
    return 0x7FFFFFFF - (best_keys(keys, count).view(rows, count) & 0x7FFFFFFF)


def _step(rank: int) -> int:
    return max(16, min(STEP, triton.next_power_of_2(rank)))
