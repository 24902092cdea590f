"""Triton kernels of a sweep: choose the best children of many lanes without writing their logits, and step the GRU.

A corrected logit is base + rows . silu(hidden + projected), as in `scoring`. Scores are compared as float32 keys that
carry the place as well, so one number orders both: the higher score first, then the lower place. Nothing here knows
trees. Loads and sums are in float32, products in the precision of `rows`, rounded to it as the core's are.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOWEST = tl.constexpr(-(2**63))  # a key below all others


@triton.jit
def _key(score, place):  # type: ignore[no-untyped-def]
    """One int64 that orders by score, then by place."""
    bits = score.to(tl.int32, bitcast=True)
    bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)  # negative floats count backwards
    return (bits.to(tl.int64) << 32) | (0x7FFFFFFF - place).to(tl.int64)


@triton.jit
def _place(key):  # type: ignore[no-untyped-def]
    return 0x7FFFFFFF - (key & 0x7FFFFFFF)


@triton.jit
def _mixed(hidden, projected, at, inside):  # type: ignore[no-untyped-def]
    """silu(hidden + projected) in float32; `at` and `inside` address `projected`, `hidden` is loaded already."""
    total = hidden + tl.load(projected + at, mask=inside, other=0.0).to(tl.float32)
    return total * tl.sigmoid(total)


@triton.jit
def best_keys(keys, best, width, count, OWN: tl.constexpr, OTHER: tl.constexpr):  # type: ignore[no-untyped-def]
    """The largest `count` of keys [B, width], largest first, as best [B, count]. Grid (blocks of OWN, B).

    No two keys are equal, so a key's place is the number of larger ones: all are counted at once, none is sorted.
    """
    row = tl.program_id(1)
    own_place = tl.program_id(0) * OWN + tl.arange(0, OWN)
    own = tl.load(keys + row * width + own_place, mask=own_place < width, other=LOWEST)
    larger = tl.zeros((OWN, OTHER), tl.int32)
    for start in range(0, width, OTHER):
        place = start + tl.arange(0, OTHER)
        other = tl.load(keys + row * width + place, mask=place < width, other=LOWEST)
        larger += (other[None, :] > own[:, None]).to(tl.int32)
    rank = tl.sum(larger, 1)
    tl.store(best + row * count + rank, own, mask=(rank < count) & (own_place < width))


@triton.jit
def row_tiles(values, keys, width, tiles, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The largest of each tile of each row of `values` [B, width], as keys [B, tiles]. Grid (tiles, B)."""
    tile, row = tl.program_id(0), tl.program_id(1)
    place = tile * TILE + tl.arange(0, TILE)
    value = tl.load(values + row * width + place, mask=place < width, other=-float("inf")).to(tl.float32)
    tl.store(keys + row * tiles + tile, tl.max(tl.where(place < width, _key(value + 0.0, place), LOWEST), 0))


@triton.jit
def row_keys(values, best, keys, width, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Keys [B, count, TILE] of all values in the tiles that `best` [B, count] lie in. Grid (count, B)."""
    slot, row, count = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    tile = _place(tl.load(best + row * count + slot)) // TILE
    place = tile * TILE + tl.arange(0, TILE)
    value = tl.load(values + row * width + place, mask=place < width, other=-float("inf")).to(tl.float32)
    out = (row * count + slot) * TILE + tl.arange(0, TILE)
    tl.store(keys + out, tl.where(place < width, _key(value + 0.0, place), LOWEST))


@triton.jit
def few_children(  # type: ignore[no-untyped-def]
    hidden, projected, rows, base, scores, log_probs, keys, lanes, width, rank,
    LANES: tl.constexpr, WIDTH: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """All children of LANES lanes at once: log-probabilities and keys [lanes, width]. Grid (blocks,)."""
    block = tl.program_id(0)
    lane = block * LANES + tl.arange(0, LANES)
    column = tl.arange(0, WIDTH)
    logits = tl.zeros((LANES, WIDTH), tl.float32)
    for start in range(0, rank, STEP):
        r = start + tl.arange(0, STEP)
        shared = tl.load(hidden + r, mask=r < rank, other=0.0).to(tl.float32)
        inside = (lane[:, None] < lanes) & (r[None, :] < rank)
        features = _mixed(shared[None, :], projected, lane[:, None] * rank + r[None, :], inside)
        weights = tl.load(
            rows + column[None, :] * rank + r[:, None], mask=(column[None, :] < width) & (r[:, None] < rank), other=0.0
        )
        logits += tl.dot(features.to(weights.dtype), weights, input_precision="ieee")
    logits = logits.to(rows.dtype.element_ty).to(tl.float32)
    logits += tl.load(base + column, mask=column < width, other=-float("inf")).to(tl.float32)[None, :]
    largest = tl.max(logits, 1)
    total = largest + tl.log(tl.sum(tl.exp(logits - largest[:, None]), 1))
    own = logits - total[:, None]
    own = tl.where(own == own, own, -float("inf"))
    place = lane[:, None] * width + column[None, :]
    real = (lane[:, None] < lanes) & (column[None, :] < width)
    tl.store(log_probs + place, own, mask=real)
    above = tl.load(scores + lane, mask=lane < lanes, other=0.0).to(tl.float32)
    tl.store(keys + place, _key(above[:, None] + own, place), mask=real)


@triton.jit
def tile_sums(  # type: ignore[no-untyped-def]
    hidden, projected, rows, base, largest, sums, lanes, width, rank, tiles,
    LANES: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Of each lane and tile of candidates the largest logit, and the sum of exponentials below it [lanes, tiles].

    Grid (blocks of lanes, tiles), so that blocks which share a tile's rows run side by side.
    """
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    tile = tl.program_id(1)
    column = tile * TILE + tl.arange(0, TILE)
    logits = tl.zeros((LANES, TILE), tl.float32)
    for start in range(0, rank, STEP):
        r = start + tl.arange(0, STEP)
        shared = tl.load(hidden + r, mask=r < rank, other=0.0).to(tl.float32)
        inside = (lane[:, None] < lanes) & (r[None, :] < rank)
        features = _mixed(shared[None, :], projected, lane[:, None] * rank + r[None, :], inside)
        weights = tl.load(
            rows + column[None, :] * rank + r[:, None], mask=(column[None, :] < width) & (r[:, None] < rank), other=0.0
        )
        logits += tl.dot(features.to(weights.dtype), weights, input_precision="ieee")
    logits = logits.to(rows.dtype.element_ty).to(tl.float32)
    logits += tl.load(base + column, mask=column < width, other=-float("inf")).to(tl.float32)[None, :]
    top = tl.max(logits, 1)
    tl.store(largest + lane * tiles + tile, top, mask=lane < lanes)
    tl.store(sums + lane * tiles + tile, tl.sum(tl.exp(logits - top[:, None]), 1), mask=lane < lanes)


@triton.jit
def lane_groups(  # type: ignore[no-untyped-def]
    largest, sums, scores, totals, bounds, keys, tiles, groups, GROUPS: tl.constexpr, GROUP: tl.constexpr
):
    """A lane's log-sum-exp, the score of each tile's best child, and the best of each group of tiles. Grid (lanes,).

    `bounds` [lanes, tiles], keys [lanes, groups].
    """
    lane = tl.program_id(0)
    group = tl.arange(0, GROUPS)
    tile = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    top = tl.load(largest + lane * tiles + tile, mask=tile < tiles, other=-float("inf"))
    part = tl.load(sums + lane * tiles + tile, mask=tile < tiles, other=0.0)
    highest = tl.max(tl.max(top, 1), 0)
    total = highest + tl.log(tl.sum(tl.sum(part * tl.exp(top - highest), 1), 0))
    tl.store(totals + lane, total)
    bound = tl.load(scores + lane).to(tl.float32) + (top - total)
    bound = tl.where(bound == bound, bound, -float("inf"))
    tl.store(bounds + lane * tiles + tile, bound, mask=tile < tiles)
    place = lane * groups + group
    tl.store(keys + place, _key(tl.max(bound, 1), place), mask=group < groups)


@triton.jit
def group_tiles(best, bounds, keys, tiles, groups, GROUP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Keys [pairs, GROUP] of the tiles in the best pairs of lane and group. Grid (pairs,)."""
    slot = tl.program_id(0)
    pair = _place(tl.load(best + slot)).to(tl.int32)
    lane, tile = pair // groups, (pair % groups) * GROUP + tl.arange(0, GROUP)
    place = lane * tiles + tile
    bound = tl.load(bounds + place, mask=tile < tiles, other=0.0)
    tl.store(keys + slot * GROUP + tl.arange(0, GROUP), tl.where(tile < tiles, _key(bound, place), LOWEST))


@triton.jit
def tile_children(  # type: ignore[no-untyped-def]
    pairs, hidden, projected, rows, base, scores, totals, log_probs, keys, width, rank, tiles,
    TILE: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """The children in one lane's tile, computed again: log-probabilities and keys [pairs, TILE]. Grid (pairs,)."""
    slot = tl.program_id(0)
    pair = _place(tl.load(pairs + slot)).to(tl.int32)
    lane, tile = pair // tiles, pair % tiles
    column = tile * TILE + tl.arange(0, TILE)
    logits = tl.zeros((TILE,), tl.float32)
    for start in range(0, rank, STEP):
        r = start + tl.arange(0, STEP)
        shared = tl.load(hidden + r, mask=r < rank, other=0.0).to(tl.float32)
        features = _mixed(shared, projected, lane * rank + r, r < rank)
        weights = tl.load(
            rows + column[:, None] * rank + r[None, :], mask=(column[:, None] < width) & (r[None, :] < rank), other=0.0
        )
        logits += tl.sum(features.to(weights.dtype).to(tl.float32)[None, :] * weights.to(tl.float32), 1)
    logits = logits.to(rows.dtype.element_ty).to(tl.float32)
    logits += tl.load(base + column, mask=column < width, other=-float("inf")).to(tl.float32)
    own = logits - tl.load(totals + lane)
    own = tl.where(own == own, own, -float("inf"))
    place = slot * TILE + tl.arange(0, TILE)
    tl.store(log_probs + place, own)
    score = tl.load(scores + lane).to(tl.float32) + own
    tl.store(keys + place, tl.where(column < width, _key(score, place), LOWEST))


@triton.jit
def chosen_children(  # type: ignore[no-untyped-def]
    keys, pairs, ids, scores, log_probs, lanes_out, tokens_out, scores_out, count, tiles,
    TILE: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """Lane, token and float64 score of the best keys, placed as `log_probs` [pairs, TILE]. Grid (1,)."""
    entry = tl.arange(0, COUNT)
    inside = entry < count
    place = _place(tl.load(keys + entry, mask=inside, other=0x7FFFFFFF))
    pair = _place(tl.load(pairs + place // TILE, mask=inside, other=0x7FFFFFFF))
    lane = pair // tiles
    token = tl.load(ids + (pair % tiles) * TILE + place % TILE, mask=inside, other=0)
    own = tl.load(log_probs + place, mask=inside, other=0.0).to(tl.float64)
    tl.store(lanes_out + entry, lane, mask=inside)
    tl.store(tokens_out + entry, token, mask=inside)
    tl.store(scores_out + entry, tl.load(scores + lane, mask=inside, other=0.0) + own, mask=inside)


@triton.jit
def gru_step(  # type: ignore[no-untyped-def]
    states, lanes, tokens, table, from_states, out, width, WIDTH: tl.constexpr
):
    """One GRU step a lane: its parent's state, its token's row of the input table, gates of the state.

    `table` [V, 3G] and `from_states` [W, 3G] hold the parts of reset, update and new gate, in this order (those of
    torch.gru_cell). Grid (W, blocks of G).
    """
    row = tl.program_id(0)
    g = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = g < width
    given = table + tl.load(tokens + row) * 3 * width + g
    carried = from_states + row * 3 * width + g
    old = tl.load(states + tl.load(lanes + row) * width + g, mask=inside, other=0.0).to(tl.float32)
    reset = tl.sigmoid(
        tl.load(given, mask=inside, other=0.0).to(tl.float32) + tl.load(carried, mask=inside, other=0.0).to(tl.float32)
    )
    update = tl.sigmoid(
        tl.load(given + width, mask=inside, other=0.0).to(tl.float32)
        + tl.load(carried + width, mask=inside, other=0.0).to(tl.float32)
    )
    raw = tl.load(given + 2 * width, mask=inside, other=0.0).to(tl.float32)
    raw += reset * tl.load(carried + 2 * width, mask=inside, other=0.0).to(tl.float32)
    new = 2 * tl.sigmoid(2 * raw) - 1  # tanh
    tl.store(out + row * width + g, (new + update * (old - new)).to(out.dtype.element_ty), mask=inside)
