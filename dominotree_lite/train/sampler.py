"""Many rows decoded at once, one token a step: prompts, user turns and replies side by side in one batch.

All rows begin together at position 0 and share the position of a static cache. Prompts are forced token by
token, so there is no padding and no prefill. A step is a fixed run of tensor operations without a look at
their values: on a GPU it is captured as a CUDA graph for each of a few widths of the cache and replayed, on a
CPU it simply runs. This file does not know chat templates, questions or files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, StaticCache

from ..target import Target

OPEN = 1 << 30  # index of a reply's first token while the user's turn has not ended
CHECK = 16  # steps between looks at whether all rows are done
WARM_UP = 3  # steps before the capture, in which libraries allocate what they need
WIDTH = 128  # attention sees the cache up to a multiple of this: no later than needed, and aligned as kernels like it
GROUPED = "grouped_single_query"


@dataclass(frozen=True)
class Start:
    """How a row begins: ids to force, index of the reply's first token, the reply's temperature (0 is greedy).

    `reply` may lie behind the ids: up to there the target goes on with the user's turn. None: it ends the turn itself.
    """

    ids: list[int]
    reply: int | None
    temperature: float


@dataclass(frozen=True)
class Rules:
    """What holds for all rows; indices count from a row's first token.

    Attributes:
        length: a row has so many tokens at most.
        turn_end: a turn that the target ends itself ends before this index at the latest.
        tail: ids put behind such a turn, in place of the token that ended it.
        ends: ids that end such a turn.
        eos: ids that end a row.
        temperature, min_p: of the user's turn; a token is left out if it is less than min_p times as likely as the
            likeliest one (arXiv 2407.01082, section 3, after the temperature).
    """

    length: int
    turn_end: int
    tail: list[int]
    ends: frozenset[int]
    eos: frozenset[int]
    temperature: float
    min_p: float


@dataclass(frozen=True)
class Written:
    """One finished row: its ids (the token that ended it included) and the index of the reply's first."""

    ids: list[int]
    reply: int


class Sampler:
    """A target with everything that a batch of `batch` rows needs on its device, made once."""

    def __init__(self, target: Target, rules: Rules, batch: int) -> None:
        self.target, self.rules, self.batch, device = target, rules, batch, target.device
        self.width = _aligned(rules.length)  # of the cache
        self.grouped = target.model.config._attn_implementation == "sdpa"
        self.cache = StaticCache(config=target.model.config, max_cache_len=self.width)
        self.generator = torch.Generator(device)
        self.column = torch.arange(self.width, device=device)
        self.tail = torch.tensor(rules.tail, dtype=torch.long, device=device)  # [T]
        self.is_end, self.is_eos = (self._table(ids) for ids in (rules.ends, rules.eos))  # [V]
        self.position = torch.zeros(1, dtype=torch.long, device=device)  # of the token to be read next
        self.ids = torch.zeros(batch, rules.length + len(rules.tail), dtype=torch.long, device=device)
        self.given = torch.zeros(batch, dtype=torch.long, device=device)  # tokens known before they are sampled
        self.reply = torch.zeros_like(self.given)  # index of the reply's first token
        self.end = torch.zeros_like(self.given)  # tokens of a finished row, the length limit until then
        self.temperature = torch.zeros(batch, device=device)  # of the reply
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}  # by width

    def _table(self, ids: frozenset[int]) -> Tensor:
        table = torch.zeros(self.target.vocab_size, dtype=torch.bool)
        table[[token for token in ids if token < len(table)]] = True  # some models name one that they can't say
        return table.to(self.target.device)

    @torch.no_grad()
    def write(self, starts: list[Start], seed: int) -> list[Written]:
        """Finish up to `batch` rows. On a given device, the same starts and seed give the same rows."""
        with _grouped_attention(self.target) if self.grouped else nullcontext():
            if self.target.device.type == "cuda" and not self._graphs:
                self._capture()
            self._begin(starts, seed)
            for step in range(self.rules.length - 1):
                width = _aligned(step + 1) if self.grouped else self.width
                if self._graphs:
                    self._graphs[width].replay()
                else:
                    self._step(width)
                if step % CHECK == CHECK - 1 and bool((self.end < self.rules.length).all()):
                    break
        columns = zip(self.ids.tolist(), self.end.tolist(), self.reply.tolist(), strict=True)
        return [Written(ids[:end], min(reply, end)) for ids, end, reply in columns][: len(starts)]

    def _begin(self, starts: list[Start], seed: int) -> None:
        """Fill the buffers; slots without a row count as done."""
        idle = self.batch - len(starts)
        ids = torch.zeros(self.ids.shape, dtype=torch.long)
        for row, start in enumerate(starts):
            ids[row, : len(start.ids)] = torch.tensor(start.ids)
        self.ids.copy_(ids)
        self.given.copy_(torch.tensor([len(start.ids) for start in starts] + [1] * idle))
        replies = [OPEN if start.reply is None else start.reply for start in starts]
        self.reply.copy_(torch.tensor(replies + [0] * idle))
        self.end.copy_(torch.tensor([self.rules.length] * len(starts) + [0] * idle))
        self.temperature.copy_(torch.tensor([start.temperature for start in starts] + [0.0] * idle))
        self.position.zero_()
        self.cache.reset()  # its layers count their tokens themselves
        self.generator.manual_seed(seed)

    def _capture(self) -> None:
        """A step as a graph for each width. What these steps leave in the buffers, `_begin` overwrites."""
        side = torch.cuda.Stream(self.target.device)
        with torch.cuda.device(self.target.device):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UP):
                    self._step(self.width)
            torch.cuda.current_stream().wait_stream(side)
            pool = torch.cuda.graph_pool_handle()
            for width in range(WIDTH if self.grouped else self.width, self.width + 1, WIDTH):
                self._graphs[width] = graph = torch.cuda.CUDAGraph()
                graph.register_generator_state(self.generator)
                with torch.cuda.graph(graph, pool=pool):
                    self._step(width)

    def _step(self, width: int) -> None:
        """Read the tokens at the position, one of the cache's first `width`, and put the next ones behind them."""
        tokens = self.ids.index_select(1, self.position)  # [B, 1]
        mask = torch.zeros(width, dtype=self.target.dtype, device=self.target.device)
        mask.masked_fill_(self.column[:width] > self.position, torch.finfo(self.target.dtype).min)
        logits = self.target.next_logits(self.cache, tokens, self.position, mask[None, None, None])
        self.position.add_(1)
        self._take(self._choose(logits))

    def _choose(self, logits: Tensor) -> Tensor:
        """A token of each row [B]: argmax of logits + temperature * Gumbel noise, a draw from the softmax.

        At temperature 0 it is the argmax of the logits [B, V], so one line serves all rows.
        """
        rules, asking = self.rules, self.reply > self.position
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        temperature = self.temperature.masked_fill(asking, rules.temperature)[:, None]
        reach = -rules.temperature * math.log(rules.min_p) if rules.min_p > 0 else math.inf
        below = torch.full_like(self.temperature, math.inf).masked_fill_(asking, reach)[:, None]
        noise = torch.empty_like(logits).exponential_(generator=self.generator)
        noise.clamp_(min=torch.finfo(noise.dtype).eps).log_()  # minus this is Gumbel noise
        scores = torch.addcmul(logits, noise, temperature.to(logits.dtype), value=-1)
        return scores.masked_fill_(logits < logits.amax(1, keepdim=True) - below, -math.inf).argmax(1)

    def _take(self, chosen: Tensor) -> None:
        """Write a token of each row at the position: the given one where there is one, else the chosen one."""
        place, rules = self.position, self.rules
        unfinished = (self.reply == OPEN) & (place >= self.given)
        closes = unfinished & (self.is_end[chosen] | (place >= rules.turn_end))
        span = place + torch.arange(len(self.tail), device=place.device)
        block = torch.where(closes[:, None], self.tail, self.ids.index_select(1, span))
        self.ids.index_copy_(1, span, block)
        behind = place + len(self.tail)
        self.reply.copy_(torch.where(closes, behind, self.reply))
        self.given.copy_(torch.where(closes, behind, self.given))
        free = place >= self.given
        token = torch.where(free, chosen, self.ids.index_select(1, place)[:, 0])
        self.ids.index_copy_(1, place, token[:, None])
        stops = free & self.is_eos[token] & (place < self.end)
        self.end.copy_(torch.where(stops, place + 1, self.end))


def _aligned(length: int) -> int:
    return -(-length // WIDTH) * WIDTH


def grouped_single_query(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of one query a row, the query heads [B, H, 1, D] of a key head taken as rows of one query.

    Older versions of transformers copy keys and values [B, K, S, D] for each of the query heads instead, and all
    attend to the cache's whole length S, here only as far as the mask goes.
    """
    rows, heads, _one, _width = query.shape
    if attention_mask is not None:
        key, value = (part[:, :, : attention_mask.shape[-1]] for part in (key, value))
    grouped = query.reshape(rows, key.shape[1], heads // key.shape[1], -1)
    out = scaled_dot_product_attention(grouped, key, value, attn_mask=attention_mask, scale=scaling)
    return out.reshape(rows, 1, heads, -1), None


AttentionInterface.register(GROUPED, grouped_single_query)


@contextmanager
def _grouped_attention(target: Target) -> Iterator[None]:
    """Let an sdpa model attend by `grouped_single_query`."""
    target.model.set_attn_implementation(GROUPED)
    try:
        yield
    finally:
        target.model.set_attn_implementation("sdpa")
