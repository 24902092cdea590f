"""Recording a trace: the round loop with every tree of the ladder in each round, verified in one pass.

The text is `dominotree`'s, as `decode` would write it. The other trees of a round grow from the same draft, and
the union of all trees is what the target reads, so that each node of each tree gets the target's own answer.
What a trace is stands in `trace.py`; this file draws nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from .build import Pop, heap_events
from .drafter import ContextCache, Draft, Drafter
from .equip import check_drafter
from .errors import InputError
from .methods import METHODS, Settings
from .prompts import PromptRow
from .target import Context, Target
from .trace import (
    DRIVER,
    MOST_CHILDREN,
    TITLES,
    Nodes,
    Push,
    Trace,
    TracedChildren,
    TracedMethod,
    TracedPrompt,
    TracedRound,
    TracedTree,
    TraceSettings,
    rounded,
    token_ids,
)
from .tree import DraftTree
from .verify import Draw, Sampling, Walk, target_draws, tree_inputs, walk

TEMPERATURES = (0.5, 0.7, 1.0, 1.5)
CANDIDATES = (16, 64)  # trees are grown for these M, too, where they are below the settings' own
CHILDREN_KEPT = 64  # nodes of a round that get their children's distribution; inner nodes get it in any case


def record(
    prompts: Sequence[PromptRow],
    target: Target,
    drafter: Drafter,
    settings: Settings,
    rounds: int | None = None,
    progress: Callable[[PromptRow], None] | None = None,
    on_round: Callable[[list[int]], None] | None = None,
) -> Trace:
    """The rounds of the answers to each prompt's first turn, `rounds` of each at most (all if None).

    `progress` is called after each prompt, `on_round` after each round with all new tokens of its prompt so far;
    what either raises ends the recording.

    `settings.method` is not read. A prompt that ends with its first token has no round and is left out. Raises
    InputError for a drafter that is no Domino, for settings that a trace does not store, and if no round is left.
    """
    for name in TITLES:
        check_drafter(name, drafter)
    _check_settings(settings, rounds)
    settings = replace(settings, candidates=min(settings.candidates or target.vocab_size, target.vocab_size))
    traced = []
    for row in prompts:
        ids = target.encode([{"role": "user", "content": row.turns[0]}])
        found = _Session(target, drafter, settings).run(ids, rounds, on_round)
        if found:
            traced.append(TracedPrompt(row.id, row.turns[0], found))
        if progress is not None:
            progress(row)
    if not traced:
        raise InputError("no answer has a second token, so there is no round to record: ask for more new tokens")
    return _trace(traced, target, drafter, settings)


def _check_settings(settings: Settings, rounds: int | None) -> None:
    sampling = Sampling(settings.sampling.temperature)
    if replace(settings, sampling=sampling, slots=None, stop=()) != settings:
        raise InputError("a trace stores no slots, stop strings, top_k or top_p: leave them as they are by default")
    if rounds is not None and rounds < 1:
        raise InputError(f"rounds {rounds} is too small: give 1 or more")


def _trace(prompts: list[TracedPrompt], target: Target, drafter: Drafter, settings: Settings) -> Trace:
    used = TraceSettings(
        settings.budget,
        settings.candidates or target.vocab_size,
        settings.child_cap,
        float(settings.sampling.temperature) * (not settings.sampling.greedy),
        settings.max_new_tokens,
        settings.seed,
    )
    occurring = {token for prompt in prompts for one in prompt.rounds for token in token_ids(one)}
    return Trace(
        target.name,
        drafter.name,
        used,
        list(TEMPERATURES),
        _candidates(used.candidates),
        {token: _text(target, token) for token in sorted(occurring)},
        [TracedMethod(name, title) for name, title in TITLES.items()],
        prompts,
    )


def _candidates(most: int) -> list[int]:
    return [*(count for count in CANDIDATES if count < most), most]


def _text(target: Target, token: int) -> str:
    """A token's own text; a special token's name, which `decode` leaves out."""
    text = target.decode([token])
    return text if text or target.tokenizer is None else str(target.tokenizer.convert_ids_to_tokens(token))


# --- One prompt ------------------------------------------------------------------------------------------------


@dataclass
class _Union:
    """The trees of a round in one: a node a path."""

    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [-1])
    depths: list[int] = field(default_factory=lambda: [0])
    known: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, pops: Sequence[Pop]) -> list[int]:
        """The nodes of the union for these steps of a heap, in their order."""
        places = [0]
        for pop in pops[1:]:
            key = (places[pop.parent], pop.token)
            if key not in self.known:
                self.known[key] = len(self.tokens)
                self.tokens.append(pop.token)
                self.parents.append(key[0])
                self.depths.append(pop.depth)
            places.append(self.known[key])
        return places

    def tree(self) -> DraftTree:
        return DraftTree.from_lists(self.tokens, self.parents, self.depths, [0.0] * len(self.tokens))


@dataclass(frozen=True)
class _Grown:
    """One tree of a round: how it grew, and where its nodes are in the union."""

    pops: list[Pop]
    places: list[int]

    def tree(self) -> DraftTree:
        columns = zip(*((pop.token, pop.parent, pop.depth, pop.log_prob) for pop in self.pops), strict=True)
        return DraftTree.from_lists(*map(list, columns))

    def traced(self) -> TracedTree:
        pushed = [[Push(e.parent, e.token, *rounded([e.log_prob])) for e in pop.pushed] for pop in self.pops]
        return TracedTree(self.places, rounded([pop.log_prob for pop in self.pops]), pushed)


Forest = dict[str, dict[int, _Grown]]  # method -> M -> tree


class _Session:
    """One prompt on its way, as `decode` goes it; but with all trees in each round."""

    def __init__(self, target: Target, drafter: Drafter, settings: Settings) -> None:
        self.target, self.drafter, self.settings = target, drafter, settings
        self.layer_ids = drafter.config.target_layer_ids
        self.most = settings.candidates or target.vocab_size
        self.generator = torch.Generator(target.device).manual_seed(settings.seed)  # the text's
        self.others = torch.Generator(target.device).manual_seed(settings.seed + 1)  # draws off the text
        self.context, self.draft_cache = Context(), ContextCache()
        self.tokens: list[int] = []

    @torch.inference_mode()
    def run(
        self, ids: list[int], rounds: int | None, on_round: Callable[[list[int]], None] | None
    ) -> list[TracedRound]:
        limit = min(self.settings.max_new_tokens, self.target.max_positions - len(ids) + 1)
        prefilled = self.target.prefill(self.context, ids, self.layer_ids)
        self.features = prefilled.features
        if limit < 1:
            return []
        self._emit([target_draws(prefilled.logits, self.settings.sampling, self.generator)(0)])
        found: list[TracedRound] = []
        while len(self.tokens) < limit and self.tokens[-1] not in self.target.eos_ids and len(found) != rounds:
            found.append(self._round(limit - len(self.tokens) - 1))
            if on_round is not None:
                on_round(list(self.tokens))
        return found

    def _round(self, depth: int) -> TracedRound:
        anchor, length, start = self.tokens[-1], self.context.length, len(self.tokens) - 1
        draft = self.drafter.draft(anchor, self.features, self.draft_cache, depth) if depth > 0 else None
        union = _Union([anchor])
        forest = self._forest(anchor, draft, union)
        tree = union.tree()
        inputs = tree_inputs(tree, length, self.target.device)
        visible = inputs.visible if len(tree) else None
        verified = self.target.verify(self.context, inputs.tokens, inputs.positions, visible, self.layer_ids)
        walks = self._walks(forest, verified.logits)
        answers = _Answers.of(tree, verified.logits)
        driven = walks[DRIVER][self.most]
        rows = [0, *driven.nodes]
        self.context.commit(rows)
        self.features = verified.features[rows]
        return TracedRound(
            start,
            anchor,
            length,
            self._emit(driven.tokens(tree)),
            Nodes(union.tokens, union.parents, union.depths),
            answers.target,
            answers.logits,
            answers.log_normalisers,
            answers.choice,
            {name: {count: grown.traced() for count, grown in row.items()} for name, row in forest.items()},
            {name: {count: one.nodes for count, one in row.items()} for name, row in walks.items()},
            {name: {count: one.bonus for count, one in row.items()} for name, row in walks.items()},
            {} if draft is None else dict(self._children(anchor, draft, tree)),
        )

    def _emit(self, new: list[int]) -> list[int]:
        """Append tokens up to the first that ends the text; returns those appended."""
        ends = [at for at, token in enumerate(new, start=1) if token in self.target.eos_ids]
        emitted = new[: ends[0]] if ends else new
        self.tokens += emitted
        return emitted

    def _forest(self, anchor: int, draft: Draft | None, union: _Union) -> Forest:
        """Every tree, in the order of the format. The driver's own joins the union first."""
        pops = {}
        for name in sorted(TITLES, key=DRIVER.__ne__):
            for count in reversed(_candidates(self.most)):
                pops[name, count] = self._pops(name, count, anchor, draft)
        grown = {key: _Grown(steps, union.add(steps)) for key, steps in pops.items()}
        return {name: {count: grown[name, count] for count in _candidates(self.most)} for name in TITLES}

    def _pops(self, name: str, count: int, anchor: int, draft: Draft | None) -> list[Pop]:
        method = METHODS[name]
        if method is None or draft is None:
            return [Pop(0, -1, 0, anchor, 0, 0.0, ())]
        settings = replace(self.settings, method=name, candidates=count)
        scorer = method.scorer(self.drafter, draft, anchor, settings)
        return list(heap_events(scorer, anchor, self.settings.budget))

    def _walks(self, forest: Forest, logits: Tensor) -> dict[str, dict[int, Walk]]:
        """Each tree's accepted nodes, as the union's. All trees share one draw a node; the text's come first."""
        made: dict[int, int] = {}
        sampling = self.settings.sampling
        self._walk(forest[DRIVER][self.most], _once(target_draws(logits, sampling, self.generator), made))
        draw = _once(target_draws(logits, sampling, self.others), made)
        return {name: {count: self._walk(grown, draw) for count, grown in row.items()} for name, row in forest.items()}

    @staticmethod
    def _walk(grown: _Grown, draw: Draw) -> Walk:
        found = walk(grown.tree(), lambda node: draw(grown.places[node]))
        return Walk([grown.places[node] for node in found.nodes], found.bonus)

    def _children(self, anchor: int, draft: Draft, tree: DraftTree) -> Iterator[tuple[int, TracedChildren]]:
        """The likeliest children of every inner node, and of leaves while there is room."""
        method = METHODS[DRIVER]
        assert method is not None
        every = replace(self.settings, child_cap=self.most)
        scorer = method.scorer(self.drafter, draft, anchor, every)
        wide = torch.promote_types(draft.base_logits.dtype, torch.float32)
        marginals = draft.base_logits.to(wide).log_softmax(-1)  # [L, V]
        asked = [node for node in range(len(tree) + 1) if tree.depths[node] < scorer.horizon]
        asked.sort(key=lambda node: not tree.children(node))
        inner = sum(bool(tree.children(node)) for node in asked)
        states = {0: scorer.root()}
        for node in sorted(asked[: max(inner, CHILDREN_KEPT)]):  # a parent is inner, and comes first
            if node:
                above = states[int(tree.parents[node])]
                states[node] = scorer.advance(above, torch.tensor([int(tree.tokens[node])], device=above.device))
            depth = int(tree.depths[node]) + 1
            children = scorer.children(depth, states[node])
            yield node, _top(children.tokens[0], marginals[depth - 1], children.log_probs[0])


def _once(fresh: Draw, made: dict[int, int]) -> Draw:
    def draw(node: int) -> int:
        if node not in made:
            made[node] = fresh(node)
        return made[node]

    return draw


def _top(tokens: Tensor, marginal: Tensor, conditional: Tensor) -> TracedChildren:
    """The tokens that either side likes best, in the order of `conditional` [M], which is falling."""
    before = marginal[tokens]  # [M]
    possible = torch.isfinite(before) & torch.isfinite(conditional)
    tokens, before, conditional = tokens[possible], before[possible], conditional[possible]
    best = torch.maximum(before, conditional).sort(descending=True, stable=True).indices[:MOST_CHILDREN]
    kept = best.sort().values
    return TracedChildren(tokens[kept].tolist(), _falling(before[kept]), _falling(conditional[kept]))


def _falling(log_probs: Tensor) -> list[float]:
    return rounded([min(value, 0.0) for value in log_probs.tolist()])  # a sure token's may round to above 0


@dataclass(frozen=True)
class _Answers:
    """What the target says to a tree; the fields are those of a traced round."""

    target: list[float]
    logits: list[float]
    log_normalisers: dict[int, list[float]]
    choice: list[int]

    @classmethod
    def of(cls, tree: DraftTree, logits: Tensor) -> _Answers:
        """From the logits [N+1, V] after each node."""
        parents, tokens = tree.parents[1:].tolist(), tree.tokens[1:].tolist()
        inner = sorted(set(parents))
        rows = logits[inner].double()  # [I, V]
        sums = torch.stack([(rows / t).logsumexp(-1) for t in TEMPERATURES], dim=-1)  # [I, temperatures]
        own = logits[parents, tokens].double().tolist()  # [N]
        if not (torch.isfinite(sums).all() and all(map(math.isfinite, own))):
            raise InputError("the target's logits are not finite: load it in another dtype")
        at_one = rows.logsumexp(-1).tolist()
        whole = dict(zip(inner, at_one, strict=True))
        target = [min(logit - whole[parent], 0.0) for logit, parent in zip(own, parents, strict=True)]
        normalisers = {node: rounded(row) for node, row in zip(inner, sums.tolist(), strict=True)}
        return cls([0.0, *rounded(target)], [0.0, *rounded(own)], normalisers, logits.argmax(-1).tolist())
