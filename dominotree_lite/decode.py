"""The round loop: draft, build, verify, commit, for every method alike; and what `generate` returns.

What the methods differ in is in methods.py. Autoregressive decoding is the same loop with no drafter: each round
verifies the bare anchor. This file draws nothing, measures nothing across prompts, and does not load models.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .budget import Chances, Choice, Costs, Pace
from .drafter import ContextCache, Draft, Drafter
from .equip import equipped
from .errors import InputError
from .methods import DEFAULT_CANDIDATES, METHODS, Settings, build_tree
from .target import Context, Message, Target
from .text import TextStream
from .tree import DraftTree
from .verify import Sampling, Walk, target_draws, tree_inputs, walk

__all__ = ["METHODS", "Settings", "decode", "generate"]


# --- Results -------------------------------------------------------------------------------------------------


@dataclass
class StageSeconds:
    """Wall seconds of one round's stages (the device is waited for at each border)."""

    draft: float = 0.0
    build: float = 0.0
    verify: float = 0.0
    commit: float = 0.0


@dataclass(frozen=True)
class Round:
    """One round: what was drafted, what the target accepted, and what was emitted after trimming."""

    start: int  # absolute position of the anchor
    tree: DraftTree
    accepted: list[int]  # nodes, root left out
    bonus: int
    tokens: list[int]  # emitted: accepted and bonus, cut at EOS, stop string or length
    seconds: StageSeconds
    choice: Choice | None = None  # of an adaptive method: the budget it chose and what it foresaw


@dataclass(frozen=True)
class Result:
    """What one prompt gave. `token_ids` holds all new tokens; the first comes from prefill, not from a round."""

    text: str
    token_ids: list[int]
    prompt_ids: list[int]
    rounds: list[Round]
    seconds: float  # decoding, without prefill
    prefill_seconds: float

    @property
    def tau(self) -> float:
        """Mean tokens a round, trimmed at the end; 0 if no round was needed."""
        return sum(len(r.tokens) for r in self.rounds) / len(self.rounds) if self.rounds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens that rounds emitted over decode seconds; 0 if there were none."""
        return sum(len(r.tokens) for r in self.rounds) / self.seconds if self.rounds else 0.0


@dataclass(frozen=True)
class Conversation(Result):
    """Several turns as one result; `turns` holds each one's own. `prompt_ids` are the last turn's."""

    turns: tuple[Result, ...] = ()

    @classmethod
    def of(cls, turns: Sequence[Result]) -> Conversation:
        return cls(
            text="\n\n".join(turn.text for turn in turns),
            token_ids=[i for turn in turns for i in turn.token_ids],
            prompt_ids=turns[-1].prompt_ids,
            rounds=[r for turn in turns for r in turn.rounds],
            seconds=sum(turn.seconds for turn in turns),
            prefill_seconds=sum(turn.prefill_seconds for turn in turns),
            turns=tuple(turns),
        )


# --- Decoding ------------------------------------------------------------------------------------------------

Prompt = str | Sequence[str] | Sequence[int] | Tensor


def generate(
    prompt: Prompt,
    target: Target,
    drafter: Drafter | None = None,
    *,
    method: str = "dominotree",
    budget: int = 64,
    candidates: int | None = DEFAULT_CANDIDATES,
    child_cap: int | None = None,
    slots: int | None = None,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    max_new_tokens: int = 128,
    stop: Sequence[str] = (),
    seed: int = 0,
    max_budget: int = 256,
    costs: Costs | None = None,
    chances: Chances | None = None,
    engine: str = "eager",
    on_text: Callable[[str], None] | None = None,
) -> Result:
    """Continue a prompt; the text's law is the target's own, whatever the method.

    Args:
        prompt: one user turn; a list of user turns, each answered in turn; or token ids, taken as they are.
        drafter: of the kind the method needs; none for `ar`.
        budget: nodes of a tree, the root not counted. Chains ignore it.
        candidates: tokens a depth that a tree's correction chooses among (M); None is the whole vocabulary.
        max_new_tokens: new tokens at most (a turn); the model's positions bound them too.
        stop: strings that end the text; they are cut from `text`, their tokens stay in `token_ids`.
        max_budget: nodes of an adaptive method's tree at most, in place of `budget`.
        costs, chances: what an adaptive method's rule reads, if not what `dominotree profile` and `dominotree
            calibrate` left on this machine.
        engine: `eager`, or `graph`: rounds as captured CUDA graphs (on a CPU, the same operations uncaptured).
        on_text: called with each new piece of text as soon as it is certain.

    Raises InputError for a prompt that is empty or too long, and for settings that make no sense.
    """
    settings = Settings(
        method=method,
        budget=budget,
        candidates=candidates,
        child_cap=child_cap,
        slots=slots,
        sampling=Sampling(temperature, top_k, top_p),
        max_new_tokens=max_new_tokens,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        seed=seed,
        max_budget=max_budget,
        costs=costs,
        chances=chances,
        engine=engine,
    )
    return decode(prompt, target, drafter, settings, on_text)


def decode(
    prompt: Prompt,
    target: Target,
    drafter: Drafter | None,
    settings: Settings,
    on_text: Callable[[str], None] | None = None,
) -> Result:
    """`generate` with its settings in one object."""
    settings = equipped(settings, target, drafter)
    generator = torch.Generator(target.device).manual_seed(settings.seed)  # one for all turns: draws are never reused
    request = _request_type(settings.engine)
    if isinstance(prompt, str):
        prompt = [prompt]
    if isinstance(prompt, Tensor) or len(prompt) == 0 or not isinstance(prompt[0], str):
        return request(target, drafter, settings, generator, on_text).run(_token_ids(prompt))
    messages: list[Message] = []
    turns: list[Result] = []
    for turn in prompt:
        messages.append({"role": "user", "content": str(turn)})
        turns.append(request(target, drafter, settings, generator, on_text).run(target.encode(messages)))
        messages.append({"role": "assistant", "content": turns[-1].text})
    return turns[0] if len(turns) == 1 else Conversation.of(turns)


def _request_type(engine: str) -> type[Request]:
    if engine == "eager":
        return Request
    from .cuda.engine import GraphRequest  # only who asks for it needs it

    return GraphRequest


def _token_ids(prompt: Prompt) -> list[int]:
    """One row of ids as plain numbers; a tensor may have a batch of one around it."""
    values: Any = prompt.tolist() if isinstance(prompt, Tensor) else prompt
    if isinstance(prompt, Tensor) and prompt.dim() == 2 and len(prompt) == 1:
        values = values[0]
    try:
        return [operator.index(i) for i in values]
    except TypeError as error:
        raise InputError("a prompt of token ids must be one row of integers") from error


class _Clock:
    """Seconds since it was last asked, the device waited for."""

    def __init__(self, target: Target) -> None:
        self.target, self.last = target, 0.0
        self.lap()

    def lap(self) -> float:
        self.target.synchronize()
        now = time.perf_counter()
        elapsed, self.last = now - self.last, now
        return elapsed


class Request:
    """One prompt on its way: the target's context, the drafter's cache, the tokens so far.

    This is the eager engine. Another one (cuda/engine.py) overrides how a prompt is read and how rounds run.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        settings: Settings,
        generator: torch.Generator,
        on_text: Callable[[str], None] | None,
    ) -> None:
        self.target, self.settings = target, settings
        self.drafter = drafter if METHODS[settings.method] else None
        self.layer_ids = self.drafter.config.target_layer_ids if self.drafter else ()
        self.generator = generator
        self.stream = TextStream(target.decode, settings.stop, on_text)
        self.context, self.draft_cache = Context(), ContextCache()
        self.tokens: list[int] = []
        self.pace = Pace()

    def run(self, ids: list[int]) -> Result:
        """Prefill, then rounds until something ends the text."""
        limit = min(self.settings.max_new_tokens, self.target.max_positions - len(ids) + 1)
        clock = _Clock(self.target)
        logits = self._prefill(ids, limit)
        prefill_seconds = clock.lap()
        if limit > 0:
            self._emit([target_draws(logits, self.settings.sampling, self.generator)(0)])
        began = time.perf_counter()
        rounds = list(self._rounds(limit))
        seconds = time.perf_counter() - began
        return Result(self.stream.finish(), self.tokens, ids, rounds, seconds, prefill_seconds)

    def _prefill(self, ids: list[int], limit: int) -> Tensor:
        """Read the prompt; logits [1, V] of the first new token, of `limit` at most."""
        prefilled = self.target.prefill(self.context, ids, self.layer_ids)
        self.features = prefilled.features
        return prefilled.logits

    def _rounds(self, limit: int) -> Iterator[Round]:
        while not self._finished(limit):
            yield self._round(limit)

    def _finished(self, limit: int) -> bool:
        return len(self.tokens) >= limit or self.stream.stopped or self.tokens[-1] in self.target.eos_ids

    def _round(self, limit: int) -> Round:
        start, seconds, clock = self.context.length, StageSeconds(), _Clock(self.target)
        depth = limit - len(self.tokens) - 1  # deeper nodes could not be emitted: the bonus needs a place
        draft = self._draft(depth)
        seconds.draft = clock.lap()
        grown = build_tree(self.tokens[-1], draft, self.drafter, self.settings, start, self.pace)
        tree = grown.tree
        seconds.build = clock.lap()
        inputs = tree_inputs(tree, start, self.target.device)
        visible = inputs.visible if len(tree) else None
        verified = self.target.verify(self.context, inputs.tokens, inputs.positions, visible, self.layer_ids)
        found = walk(tree, target_draws(verified.logits, self.settings.sampling, self.generator))
        seconds.verify = clock.lap()
        self._commit(found, verified.features)
        emitted = self._emit(found.tokens(tree))
        if grown.choice:
            self.pace.add(len(emitted), grown.choice.seconds)
        seconds.commit = clock.lap()
        return Round(start, tree, found.nodes, found.bonus, emitted, seconds, grown.choice)

    def _draft(self, depth: int) -> Draft | None:
        """The next block, at most `depth` deep; None where nothing can be drafted."""
        if self.drafter is None or depth < 1:
            return None
        slots = max(1, min(depth, self.settings.slots or depth, self.settings.deepest))
        return self.drafter.draft(self.tokens[-1], self.features, self.draft_cache, slots)

    @torch.inference_mode()
    def _commit(self, found: Walk, features: Tensor) -> None:
        rows = [0, *found.nodes]  # the anchor's own row is known only now
        self.context.commit(rows)
        self.features = features[rows]

    def _emit(self, new: list[int]) -> list[int]:
        """Append tokens up to the first that ends the text; returns those appended."""
        emitted: list[int] = []
        for token in new:
            emitted.append(token)
            self.tokens.append(token)
            if token in self.target.eos_ids or self.stream.ends_with(self.tokens):
                break
        self.stream.push(self.tokens)
        return emitted
