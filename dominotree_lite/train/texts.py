"""Texts to walk over: the target's own greedy continuations, of prompts or from rows never trained on.

This file does not know drafters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from transformers import GenerationConfig

from ..errors import InputError
from ..prompts import PromptRow
from ..target import Target
from .corpus import Batch, Corpus

AT_ONCE = 128  # texts in memory at a time
HELD_OUT = "held-out"  # the group of rows of a corpus


@dataclass(frozen=True)
class KnownText:
    """A prompt with its greedy continuation: ids of both, the index of the first new token, and where it is from."""

    name: str
    group: str
    ids: list[int]
    start: int

    @property
    def drafted(self) -> int:
        """New tokens that rounds yield: all but the one that prefill does."""
        return len(self.ids) - self.start - 1


def of_prompts(target: Target, prompts: Sequence[PromptRow], new_tokens: int) -> list[KnownText]:
    """The first turn of every prompt, answered greedily by the target, at most `new_tokens` long."""
    asked = [target.encode([{"role": "user", "content": prompt.turns[0]}]) for prompt in prompts]
    for prompt, ids in zip(prompts, asked, strict=True):
        if len(ids) + new_tokens > target.max_positions:
            raise InputError(f"prompt {prompt.id}: with {new_tokens} new tokens longer than {target.max_positions}")
    answers = [answer for begin in range(0, len(asked), AT_ONCE)
               for answer in _answers(target, asked[begin : begin + AT_ONCE], new_tokens)]  # fmt: skip
    return [
        KnownText(prompt.id, prompt.suite, ids + answer, len(ids))
        for prompt, ids, answer in zip(prompts, asked, answers, strict=True)
        if len(answer) > 1  # a single token needs no round
    ]


@torch.inference_mode()
def _answers(target: Target, asked: list[list[int]], new_tokens: int) -> list[list[int]]:
    """Greedy answers up to the end-of-sequence token, that one included."""
    width = max(map(len, asked))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in asked], device=target.device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in asked], device=target.device)
    ends = target.eos_ids
    settings = GenerationConfig(
        do_sample=False,
        max_new_tokens=new_tokens,
        eos_token_id=sorted(ends) or None,
        pad_token_id=min(ends, default=0),
    )
    out = target.model.generate(input_ids=ids, attention_mask=mask, generation_config=settings)[:, width:].tolist()
    lengths = [next((i + 1 for i, token in enumerate(row) if token in ends), len(row)) for row in out]
    return [row[:length] for row, length in zip(out, lengths, strict=True)]


def of_corpus(corpus: Corpus, count: int) -> list[KnownText]:
    """The first `count` rows, whatever the temperature of their replies."""
    return [
        KnownText(f"row {row}", HELD_OUT, corpus.flat[start : start + length].tolist(), int(reply))
        for row, start, length, reply in zip(range(count), corpus.start, corpus.length, corpus.reply, strict=False)
    ]


def batches(texts: Sequence[KnownText], device: torch.device) -> Iterator[Batch]:
    """Right-padded batches in order, anchored at each text's first new token."""
    for begin in range(0, len(texts), AT_ONCE):
        part = texts[begin : begin + AT_ONCE]
        width = max(len(text.ids) for text in part)
        ids = torch.tensor([text.ids + [0] * (width - len(text.ids)) for text in part], device=device)
        lengths = torch.tensor([len(text.ids) for text in part], device=device)
        yield Batch(ids, lengths, torch.tensor([[text.start] for text in part], device=device))
