"""A round as five recorded stages over fixed buffers: draft, build, verify, walk, commit.

Each stage reads what the one before left on the device, so a round needs nothing from the host and the host needs
one wait. Stages that read the context are recorded once for each bucket of its length. This file knows no text, no
limits of it but the depth that may still be drafted, and no stop conditions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..drafter import Draft, Drafter
from ..methods import METHODS, Method, Settings
from ..target import Context, Target
from .accept import accept, draws_of
from .builders import LanesOf
from .graphs import host_like, record, wait
from .store import Store, bucket
from .sweep import Chosen, Lanes, Swept, sweep

Stage = Callable[[], None]
TIMED = ("draft", "build", "verify", "walk", "commit")


class Bounded:
    """Lanes that end at a depth which the device knows: deeper children are impossible."""

    def __init__(self, lanes: Lanes, deepest: Tensor) -> None:
        self.lanes, self.deepest, self.horizon = lanes, deepest, lanes.horizon
        self.start, self.advance = lanes.start, lanes.advance

    def choose(self, depth: int, scores: Tensor, count: int) -> Chosen:
        """The children, with probability 0 below the deepest depth."""
        chosen = self.lanes.choose(depth, scores, count)
        return Chosen(chosen.lanes, chosen.tokens, chosen.scores.where(self.deepest >= depth, -torch.inf))


@dataclass(frozen=True)
class Shape:
    """The fixed sizes of a round: rows N of a pass (nodes with the root), and depths L."""

    rows: int
    depths: int


def shape_of(settings: Settings, drafter: Drafter | None) -> Shape:
    """Of a method; the bare anchor where nothing is drafted."""
    method = METHODS[settings.method]
    if method is None or drafter is None or (settings.budget == 0 and not method.is_chain):
        return Shape(1, 0)
    depths = min(settings.slots or drafter.horizon, drafter.horizon)
    return Shape((depths if method.is_chain else settings.budget) + 1, depths)


class Stages:
    """One method's rounds for one target and drafter, after `prepare` and `begin` in this order."""

    @torch.inference_mode()
    def __init__(self, target: Target, drafter: Drafter | None, settings: Settings, lanes_of: LanesOf | None) -> None:
        self.target, self.settings, self.lanes_of = target, settings, lanes_of  # no lanes: the bare anchor
        self.shape = shape_of(settings, drafter)
        self.drafter = drafter if self.shape.depths and lanes_of else None
        self.layer_ids = self.drafter.config.target_layer_ids if self.drafter else ()
        self.device, self.generator = target.device, torch.Generator(target.device)
        self._draw = draws_of(settings.sampling, self.generator)
        self._pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        rows, depths = self.shape.rows, self.shape.depths
        # How far the text is, on the device. A fresh row is a committed token the drafter has not read yet.
        self.length, self.fresh, self.deepest, self.anchor = (self._integers(1) for _ in range(4))
        self.path, self.draws = self._integers(depths + 1), self._integers(rows)
        self.found = self._integers(depths + 3)  # of accept
        self.packed = self._integers(4, rows)  # of the tree
        self.tree = Swept(self.packed[0], self.packed[1], self.packed[2], self.packed[3].view(torch.float64), depths)
        self.visible = torch.eye(rows, dtype=torch.bool, device=self.device)
        self.host = host_like(self._outcome())
        self.store: Store | None = None
        self.stages: dict[tuple[str, int], Stage] = {}

    # --- What the host asks for ----------------------------------------------------------------------------

    def bucket(self, length: int) -> int:
        """Places that a round reads when so many tokens are committed."""
        return bucket(length + max(self.shape.rows, self.shape.depths + 1))

    def use(self, lanes_of: LanesOf) -> None:
        """Build on other lanes from now on."""
        self.lanes_of, self.store = lanes_of, None

    @torch.inference_mode()
    def prepare(self, context: Context, features: Tensor, longest: int) -> None:
        """Take over a prompt's keys, values and features; record all that a text of `longest` tokens needs."""
        layers = context.layers()
        if self.drafter is None:  # a budget of 0 drafts nothing, whatever the method
            features = features[:, :0]
        drafted = self._draft_context(features)
        if self.store is None or self.store.size < self.bucket(longest):
            self._allocate(context, features, 2 * self.bucket(longest))
        assert self.store is not None
        seen = self.bucket(context.length)
        while seen <= self.bucket(longest):
            self._record(seen)
            seen = bucket(seen + 1)
        self.store.fill(layers)
        if self.drafter:
            self.draft_store.fill(drafted)
        self.length.fill_(context.length)
        self.fresh.fill_(context.length)

    @torch.inference_mode()
    def begin(self, anchor: int, deepest: int, seed: int) -> None:
        """The first token is known, and how deep the first tree may grow."""
        self.anchor.fill_(anchor)
        self.deepest.fill_(deepest)
        self.generator.manual_seed(seed)

    @torch.inference_mode()
    def launch(self, length: int) -> Marks:
        """Ask for a whole round after `length` committed tokens; `wait` for its outcome in `host`."""
        seen, marks = self.bucket(length), Marks(self.device)
        if self.drafter:
            self.stages["draft", seen]()
        marks.add()
        self.stages["build", 0]()
        marks.add()
        self.stages["verify", seen]()
        marks.add()
        self.stages["walk", 0]()
        marks.add()
        self.stages["commit", 0]()
        marks.add()
        return marks

    def outcome(self) -> Tensor:
        """Wait for the round; a copy of its tree [4 * N] and of what was accepted (count, bonus, path) [L + 3]."""
        wait(self.device)
        return self.host.clone()

    # --- Recording -----------------------------------------------------------------------------------------

    def _integers(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=self.device)

    def _allocate(self, context: Context, features: Tensor, size: int) -> None:
        """Places for `size` tokens. Graphs hold the old ones, so they go."""
        self.stages.clear()
        self.store = Store(context.layers(), size)
        rows, depths = self.shape.rows, self.shape.depths
        self.features = features.new_zeros(rows, features.shape[1])
        self.kept = features.new_zeros(depths + 1, features.shape[1])
        if self.drafter:
            context_of_one = self._draft_context(features[:1])
            self.draft_store = Store(context_of_one, size)
            drafted = self.drafter.draft_block(self.anchor, self.length, context_of_one, None, self.settings.slots)
            self.draft = Draft(torch.zeros_like(drafted.hidden), torch.zeros_like(drafted.base_logits))

    def _draft_context(self, features: Tensor) -> list[tuple[Tensor, Tensor]]:
        if self.drafter is None:
            return []
        return self.drafter.model.context(features[None], torch.arange(len(features), device=self.device)[None])

    def _record(self, seen: int) -> None:
        wanted: dict[tuple[str, int], Stage] = {
            ("draft", seen): partial(self._draft_block, seen),
            ("build", 0): self._build,
            ("verify", seen): partial(self._verify, seen),
            ("walk", 0): self._walk,
            ("commit", 0): self._commit,
        }
        for key, stage in wanted.items():
            if key in self.stages or (key[0] == "draft" and self.drafter is None):
                continue
            self.length.zero_()  # what is run before a capture must stay within the places
            self.fresh.zero_()
            draws = [self.generator] if key[0] == "verify" and not self.settings.sampling.greedy else []
            self.stages[key] = record(stage, self.device, self._pool, draws)

    # --- The stages ----------------------------------------------------------------------------------------

    def _draft_block(self, seen: int) -> None:
        assert self.drafter is not None
        model, block = self.drafter.model, self.drafter.config.block_size
        places = self.fresh + torch.arange(len(self.kept), device=self.device)
        for layer, new in enumerate(model.context(self.kept[None], places[None])):
            self.draft_store.write(layer, places, new)
        context = [self.draft_store.shown(layer, seen) for layer in range(len(model.layers))]
        committed = torch.arange(seen, device=self.device) < self.length
        mask = torch.cat([committed, committed.new_ones(block)])[None, None, None]
        drafted = self.drafter.draft_block(self.anchor, self.length, context, mask, self.settings.slots)
        self.draft.hidden.copy_(drafted.hidden)
        self.draft.base_logits.copy_(drafted.base_logits)

    def _build(self) -> None:
        if self.lanes_of is None or self.drafter is None:
            self.tree.tokens.copy_(self.anchor)
            return
        lanes = self.lanes_of(self.draft, self.anchor)
        swept = sweep(Bounded(lanes, self.deepest), self.anchor, self.shape.rows - 1)
        rows = len(swept.tokens)  # fewer where the whole vocabulary has no more paths
        self.tree.scores.fill_(-torch.inf)
        self.packed[:, :rows] = swept.packed()
        self.visible[:rows, :rows] = swept.visible()

    def _verify(self, seen: int) -> None:
        store, rows = self.store, self.shape.rows
        assert store is not None
        places = self.length + torch.arange(rows, device=self.device)
        # Nothing is accepted beyond the last position; rows that would stand there only fill up the shape.
        positions = (self.length + self.tree.depths).clamp(max=self.target.max_positions - 1)
        shown = (torch.arange(seen, device=self.device) < self.length).repeat(rows, 1)  # [N, seen]
        shown.index_copy_(1, places, self.visible)
        mask = torch.zeros(rows, seen, dtype=self.target.dtype, device=self.device)
        mask.masked_fill_(~shown, torch.finfo(self.target.dtype).min)
        store.places, store.seen = places, seen
        passed = self.target.forward(store, self.tree.tokens, positions, mask[None, None], self.layer_ids)
        self.draws.copy_(self._draw(passed.logits))
        self.features.copy_(passed.features)

    def _walk(self) -> None:
        self.found.copy_(accept(self.tree, self.visible, self.draws).packed())

    def _commit(self) -> None:
        assert self.store is not None
        count, bonus, path = self.found[:1], self.found[1:2], self.found[2:]
        depths = torch.arange(len(path), device=self.device)
        self.store.move(self.length + path, self.length + depths)  # what is not accepted is out of sight again
        self.kept.copy_(self.features[path])
        self.fresh.copy_(self.length)
        self.length.add_(count + 1)
        self.deepest.sub_(count + 1)
        self.anchor.copy_(bonus)
        self.host.copy_(self._outcome(), non_blocking=True)

    def _outcome(self) -> Tensor:
        return torch.cat([self.packed.flatten(), self.found])


class Marks:
    """The borders of a round's stages, as events on a GPU, which nobody waits for, and by the clock elsewhere."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.events: list[torch.cuda.Event] = []
        self.times: list[float] = []
        self.add()

    def add(self) -> None:
        """The stage before ends here."""
        if self.device.type != "cuda":
            self.times.append(time.perf_counter())
            return
        self.events.append(torch.cuda.Event(enable_timing=True))
        self.events[-1].record(torch.cuda.current_stream(self.device))

    def seconds(self) -> dict[str, float]:
        """Of each of `TIMED`, once the round was waited for."""
        if self.device.type == "cuda":
            borders = [self.events[0].elapsed_time(event) / 1000 for event in self.events]
        else:
            borders = self.times
        return {stage: after - before for stage, before, after in zip(TIMED, borders, borders[1:], strict=False)}


def usable(method: Method | None) -> bool:
    """Whether a method's rounds have a shape known beforehand: no rule cuts their trees."""
    return method is None or method.rule is None
