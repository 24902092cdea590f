"""Peers: transformers' own ways to decode, on the same model in the same process, as results like ours.

    hf-generate        plain `generate`: what `ar` has to equal, and its speed
    hf-prompt-lookup   drafts what followed the last tokens where they stood before (`prompt_lookup_num_tokens`)
    hf-early-exit      the target's first layers draft for all of them (`assistant_early_exit`)

Nothing is changed inside `generate`: hooks on the model see each forward pass. Passes of the whole target are
rounds; those of fewer layers belong to a draft. The clock runs as ours does, from the end of the pass that reads the
prompt to the end. transformers drafts before that pass too and verifies the draft in it, so what it yields, one token
or more, is prefill's, and counts neither as a round nor among the rounds' tokens. `verify` is the time within
passes of the whole target, `draft` all that comes before each: drawing, cropping the cache, stopping criteria, drafts;
what follows the last is `commit`.

Everything not named here stays at transformers' defaults (up to 20 early-exit drafts, fewer after a miss). This
file knows no prompts' suites and adds nothing up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig

from .decode import Conversation, Result, Round, StageSeconds
from .errors import InputError
from .methods import Settings
from .target import Message, Target
from .tree import DraftTree

LOOKUP_TOKENS = 10
EXIT_SHARE = 3  # one layer in three drafts


def _plain(target: Target) -> dict[str, int]:
    return {}


def _prompt_lookup(target: Target) -> dict[str, int]:
    return {"prompt_lookup_num_tokens": LOOKUP_TOKENS}


def _early_exit(target: Target) -> dict[str, int]:
    if target.num_layers < 2:
        raise InputError(f"hf-early-exit: {target.name} has one layer, so none to leave out; choose another method")
    return {"assistant_early_exit": max(1, target.num_layers // EXIT_SHARE)}


PEERS: dict[str, Callable[[Target], dict[str, int]]] = {
    "hf-generate": _plain,
    "hf-prompt-lookup": _prompt_lookup,
    "hf-early-exit": _early_exit,
}


def decode_by_peer(name: str, turns: Sequence[str], target: Target, settings: Settings) -> Result:
    """Every turn after the peer's own answers. Of `settings` count sampling, new tokens and the seed.

    A round's tree is the chain that was drafted, without scores. Raises InputError as `decode` does, and for a
    model whose passes can't be told apart.
    """
    messages: list[Message] = []
    results: list[Result] = []
    with _seeded(target, settings.seed), _neutral_defaults(target):
        for turn in turns:
            messages.append({"role": "user", "content": turn})
            results.append(_answer(name, target.encode(messages), target, settings))
            messages.append({"role": "assistant", "content": results[-1].text})
    return results[0] if len(results) == 1 else Conversation.of(results)


def _answer(name: str, ids: list[int], target: Target, settings: Settings) -> Result:
    target.check_prompt(ids)
    limit = min(settings.max_new_tokens, target.max_positions - len(ids) + 1)
    if limit < 1:
        return Result("", [], ids, [], 0.0, 0.0)
    config = _config(target, settings, limit)
    for key, value in PEERS[name](target).items():
        setattr(config, key, value)
    prompt = torch.tensor([ids], device=target.device)
    with _Watch(target) as watch:
        out: Any = target.model.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=config)
        ended = watch.now()
    tokens = out[0, len(ids) :].tolist()
    text = target.decode(tokens)
    first, *rest = watch.passes
    rounds = _rounds(rest, [*ids, *tokens], first.end, ended)
    return Result(text, tokens, ids, rounds, ended - first.end, first.end - first.begin)


def _config(target: Target, settings: Settings, limit: int) -> GenerationConfig:
    sampled = {"do_sample": True, "temperature": settings.sampling.temperature, "top_k": 0, "top_p": 1.0}
    eos = sorted(target.eos_ids)
    return GenerationConfig(
        max_new_tokens=limit,
        eos_token_id=eos or None,
        pad_token_id=eos[0] if eos else 0,
        **({"do_sample": False} if settings.sampling.greedy else sampled),
    )


@contextmanager
def _seeded(target: Target, seed: int) -> Iterator[None]:
    """`generate` draws from the global generators; they are as before afterwards."""
    devices = [target.device] if target.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield


@contextmanager
def _neutral_defaults(target: Target) -> Iterator[None]:
    """The model's own defaults put aside: some sample or penalise, and drafts of one text would shorten the next's."""
    model: Any = target.model
    before, layers = model.generation_config, model.config.num_hidden_layers
    model.generation_config = GenerationConfig(eos_token_id=before.eos_token_id if before else None)
    try:
        yield
    finally:
        model.generation_config = before
        model.config.num_hidden_layers = layers  # an interrupted early exit leaves fewer


# --- Watching ------------------------------------------------------------------------------------------------


@dataclass
class _Pass:
    """A pass of the whole target over new tokens at positions from `start` on; clock readings in seconds."""

    start: int
    tokens: Tensor  # [n]
    begin: float
    end: float = 0.0


@dataclass
class _Watch:
    """Notes every pass of the whole target while it is entered."""

    target: Target
    passes: list[_Pass] = field(default_factory=list)

    def __enter__(self) -> _Watch:
        model = self.target.model
        self._hooks = [
            model.register_forward_pre_hook(self._before, with_kwargs=True),
            model.register_forward_hook(self._after),
        ]
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def now(self) -> float:
        self.target.synchronize()
        return time.perf_counter()

    def _is_draft(self) -> bool:
        return bool(self.target.model.config.num_hidden_layers < self.target.num_layers)

    def _before(self, module: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        if self._is_draft():
            return
        cache, tokens = given.get(self.target.cache_name), given.get("input_ids")
        if cache is None or tokens is None:
            raise InputError(f"{self.target.name}: its passes have no cache and token ids, so rounds can't be counted")
        self.passes.append(_Pass(cache.get_seq_length(), tokens[0], self.now()))

    def _after(self, module: nn.Module, args: tuple[Any, ...], output: object) -> None:
        if not self._is_draft():
            self.passes[-1].end = self.now()


def _rounds(passes: list[_Pass], text: list[int], began: float, ended: float) -> list[Round]:
    """A pass verified its tokens after the first; what it emitted goes up to where the next pass begins."""
    rounds = []
    for one, following in zip_longest(passes, passes[1:]):
        anchor, *drafted = one.tokens.tolist()
        emitted = text[one.start + 1 : following.start + 1 if following else len(text)]
        matches = [a == b for a, b in zip(drafted, emitted, strict=False)]
        count = matches.index(False) if False in matches else len(matches)
        seconds = StageSeconds(draft=one.begin - began, verify=one.end - one.begin)
        began = one.end
        rounds.append(
            Round(one.start, _chain(anchor, drafted), list(range(1, count + 1)), emitted[-1], emitted, seconds)
        )
    if rounds:
        rounds[-1].seconds.commit = ended - began
    return rounds


def _chain(anchor: int, drafted: list[int]) -> DraftTree:
    depth = len(drafted)
    return DraftTree.from_lists([anchor, *drafted], range(-1, depth), range(depth + 1), [0.0] * (depth + 1))
