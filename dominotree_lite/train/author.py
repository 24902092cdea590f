"""The target writes its own training text: a user turn, then the reply a drafter learns to foresee.

A drafter has to match its target, so the best text is what the target itself would say (DFlash, arXiv
2602.06036, section 5: replies are generated anew by the target). Questions are whole ones from questions.py, or
begun there and ended by the target, or its own from the first word. Rows go to npz shards, each written whole or
not at all; corpus.py reads them. This file does not know drafters or losses, nor how tokens are chosen (sampler.py).
"""

from __future__ import annotations

import io
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from ..errors import InputError
from ..files import write_file
from ..target import Target
from .folder import claim
from .overlap import Overlap
from .questions import DOMAINS, opening, question
from .sampler import Rules, Sampler, Start, Written
from .statistics import REASONS, STATISTICS, add_seconds, write_statistics

SENTINEL = "USERTURN"  # stands for the user's words where a chat template is taken apart
PLAIN_START = 32  # tokens that a target writes freely before its "reply", where no template ends the turn
BATCH = {"cpu": 64, "cuda": 1024}  # rows written at once
SHARD_BATCHES = 4  # batches that make a shard
ATTEMPTS = 100  # questions drawn until one is short enough
FREE = "free"  # the kind of a row that begins with nothing
KINDS = (*DOMAINS, *(f"{domain}, begun" for domain in DOMAINS), FREE)


@dataclass(frozen=True)
class CorpusConfig:
    """What to write. Lengths in tokens, shares as fractions of the rows; a row counts before any are dropped.

    Attributes:
        row_length: no row is longer, prompt and reply together.
        user_length: a user turn is no longer; half of it at most are opening words.
        template_share: rows that ask a whole question.
        opening_share: of the other rows, those whose user turn begins with given words.
        greedy_share: rows whose reply is greedy; the others have `reply_temperature`.
        min_p: of the user turn: tokens below this share of the likeliest one's probability are left out.
        min_reply: rows with shorter replies are dropped, and those whose user turn is empty.
        batch: rows written at once; None is 1024 on a GPU, 64 on a CPU.
        shard_rows: rows of a file, None is four batches.
    """

    rows: int = 4096
    row_length: int = 512
    user_length: int = 256
    template_share: float = 0.6
    opening_share: float = 0.6
    greedy_share: float = 0.6
    reply_temperature: float = 0.8
    user_temperature: float = 1.0
    min_p: float = 0.03
    min_reply: int = 8
    shard_rows: int | None = None
    batch: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        optional = [count for count in (self.shard_rows, self.batch) if count is not None]
        if min(self.rows, self.row_length, self.user_length, self.min_reply, *optional) < 1 or self.seed < 0:
            raise InputError("corpus: rows, lengths, shard_rows and batch must be at least 1, the seed 0")
        shares = (self.template_share, self.opening_share, self.greedy_share, self.min_p)
        if not all(0 <= share <= 1 for share in shares):
            raise InputError("corpus: template_share, opening_share, greedy_share and min_p are fractions of one")
        if min(self.reply_temperature, self.user_temperature) <= 0:
            raise InputError("corpus: temperatures must be above 0 (greedy_share asks for greedy replies)")

    def on(self, device: str) -> CorpusConfig:
        """The same with what was left open chosen for a type of device."""
        batch = self.batch or BATCH.get(device, BATCH["cpu"])
        return replace(self, batch=batch, shard_rows=self.shard_rows or SHARD_BATCHES * batch)


@dataclass(frozen=True)
class Row:
    """One finished row: token ids, index of the reply's first, its temperature (0 is greedy), number of its kind."""

    ids: list[int]
    reply: int
    temperature: float
    kind: int


@dataclass(frozen=True)
class Shard:
    """The rows kept and how many were dropped for which reason."""

    rows: list[Row]
    dropped: Counter[str]


@dataclass(frozen=True)
class Frame:
    """What a chat template puts around the user's words: text before, ids after, ids that end the turn.

    `template` is false for a target without one: it goes on from its beginning-of-text token.
    """

    before: str
    after: list[int]
    ends: frozenset[int]
    template: bool

    def prompt(self, tokenizer: PreTrainedTokenizerBase, opening: str) -> list[int]:
        """Ids up to where the target writes on; empty if there is nothing to begin with."""
        if self.template:
            return _ids(tokenizer, self.before + opening)
        begin = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
        return begin + (_ids(tokenizer, opening) if opening else [])


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False).input_ids)


def chat_frame(target: Target) -> Frame:
    """The frame of a target's chat template, found by rendering a message and cutting it out again.

    Raises InputError if there is no tokenizer, or the template does not show the user's words once.
    """
    tokenizer = target.tokenizer
    if tokenizer is None:
        raise InputError(f"{target.name} has no tokenizer: it can't be asked to write text")
    if tokenizer.chat_template is None:
        return Frame("", [], target.eos_ids, template=False)
    message = [{"role": "user", "content": SENTINEL}]
    text = str(
        tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    )
    if text.count(SENTINEL) != 1:
        raise InputError(f"{target.name}: its chat template does not show the user's words exactly once")
    before, _, rest = text.partition(SENTINEL)
    after = _ids(tokenizer, rest)
    marker = tokenizer.added_tokens_decoder.get(after[0]) if after else None
    ends = target.eos_ids | ({after[0]} if marker is not None and marker.special else set())
    return Frame(before, after, frozenset(ends), template=True)


class Author:
    """A target that writes rows, a shard at a time. `config` must have no open choices."""

    def __init__(self, target: Target, config: CorpusConfig, overlap: Overlap) -> None:
        self.target, self.config, self.overlap, self.frame = target, config, overlap, chat_frame(target)
        assert target.tokenizer is not None  # chat_frame refuses that
        assert config.batch is not None and config.shard_rows is not None
        self.tokenizer, self.batch = target.tokenizer, min(config.batch, config.shard_rows, config.rows)
        self.nothing = len(self.frame.prompt(self.tokenizer, ""))  # tokens before the user's words
        self.silent = self.nothing + len(self.frame.after)  # length of a prompt in which nothing is asked
        self._check_room()
        self._sampler: Sampler | None = None

    def _check_room(self) -> None:
        """Every row must have room for a reply, and every token a position."""
        config, target = self.config, self.target
        if config.row_length > target.max_positions:
            raise InputError(f"row_length {config.row_length}: {target.name} has {target.max_positions} positions")
        taken = self.silent + config.user_length
        if taken + config.min_reply > config.row_length:
            raise InputError(
                f"row_length {config.row_length} leaves no room for a reply after a prompt of up to {taken}"
                " tokens: raise it or lower user_length"
            )
        for domain in DOMAINS if config.template_share > 0 else ():
            self._whole(domain, np.random.default_rng(config.seed))

    def shard(self, index: int, rows: int, advance: Callable[[int], object]) -> Shard:
        """The rows of one shard: a function of the settings and its number alone, given the device.

        `advance` is called with the number of rows done, dropped ones included, as they are done.
        """
        rng = np.random.default_rng([self.config.seed, index])
        plan = [self._start(rng) for _ in range(rows)]
        shard = Shard([], Counter())
        for begin in range(0, rows, self.batch):
            part = plan[begin : begin + self.batch]
            written = self.sampler.write([start for _, start in part], int(rng.integers(2**62)))
            for (kind, start), row in zip(part, written, strict=True):
                reason = self._fault(row)
                if reason is None:
                    shard.rows.append(Row(row.ids, row.reply, start.temperature, kind))
                else:
                    shard.dropped[reason] += 1
            advance(len(part))
        return shard

    @property
    def sampler(self) -> Sampler:
        """Made when the first row is wanted: it takes the memory of a whole batch."""
        if self._sampler is None:
            config, frame = self.config, self.frame
            turn_end = self.nothing + config.user_length
            rules = (config.row_length, turn_end, frame.after, frame.ends, self.target.eos_ids)
            self._sampler = Sampler(self.target, Rules(*rules, config.user_temperature, config.min_p), self.batch)
        return self._sampler

    def _start(self, rng: np.random.Generator) -> tuple[int, Start]:
        """Number of its kind and beginning of a row."""
        config = self.config
        domain = list(DOMAINS)[rng.integers(len(DOMAINS))]
        temperature = 0.0 if rng.random() < config.greedy_share else config.reply_temperature
        if rng.random() < config.template_share:
            ids = self._whole(domain, rng)
            return KINDS.index(domain), Start(ids, len(ids), temperature)
        kind, ids = FREE, self.frame.prompt(self.tokenizer, "")
        if not ids or rng.random() < config.opening_share:
            kind, ids = f"{domain}, begun", self.frame.prompt(self.tokenizer, opening(domain, rng))
            del ids[self.nothing + max(1, config.user_length // 2) :]
        # A target that has no way to end a turn says so many tokens before they count as its reply.
        reply = None if self.frame.after else len(ids) + min(PLAIN_START, config.user_length // 2)
        return KINDS.index(kind), Start(ids, reply, temperature)

    def _whole(self, domain: str, rng: np.random.Generator) -> list[int]:
        """A prompt that asks a whole question, one that fits."""
        for _ in range(ATTEMPTS):
            ids = self.frame.prompt(self.tokenizer, question(domain, rng))
            if len(ids) <= self.nothing + self.config.user_length:
                return ids + self.frame.after
        length = self.config.user_length
        raise InputError(f"user_length {length} is too short for whole questions: raise it, or ask for none of them")

    def _fault(self, row: Written) -> str | None:
        """Why a row is of no use, if it is not."""
        if row.reply <= self.silent:
            return "empty turn"
        if len(row.ids) - row.reply < self.config.min_reply:
            return "short reply"
        turn = row.ids[self.nothing : row.reply - len(self.frame.after)]
        return "overlap" if self.overlap.met_in(self.target.decode(turn)) else None


def write_corpus(target: Target, folder: Path, config: CorpusConfig, avoid: tuple[Path, ...] = ()) -> list[Path]:
    """Write the corpus as shards `corpus-00000.npz`, ... and return their paths, in order.

    Rows that share wording with a prompt of the files `avoid` are dropped (overlap.py). After the last shard come
    statistics.json and card.md. Shards that are there already are kept, so a call that was interrupted is simply
    made again. Raises InputError if the folder holds a corpus of another target or other settings, or a file of
    prompts can't be read.
    """
    config = config.on(target.device.type)
    overlap = Overlap(target, avoid)
    author = Author(target, config, overlap)
    settings = {"target": target.name, "avoid": overlap.files, **asdict(config)}
    claim(folder, settings)
    paths, fresh = [], False
    with tqdm(total=config.rows, unit="row", desc="corpus", disable=None, dynamic_ncols=True) as bar:
        assert config.shard_rows is not None
        for index, begin in enumerate(range(0, config.rows, config.shard_rows)):
            rows = min(config.shard_rows, config.rows - begin)
            paths.append(folder / f"corpus-{index:05}.npz")
            if not paths[-1].exists():
                started = time.perf_counter()
                _save(paths[-1], author.shard(index, rows, bar.update), target.vocab_size)
                fresh = True
                add_seconds(folder, paths[-1].name, time.perf_counter() - started)
            bar.update(begin + rows - bar.n)
    if fresh or not (folder / STATISTICS).exists():
        write_statistics(folder, paths, target, settings, KINDS)
    return paths


def _save(path: Path, shard: Shard, vocab_size: int) -> None:
    """The format that corpus.py reads; `kind` and `dropped` are for the statistics."""
    rows = shard.rows
    columns = {
        "flat": np.array([t for row in rows for t in row.ids], np.uint16 if vocab_size <= 1 << 16 else np.int32),
        "len": np.array([len(row.ids) for row in rows], np.int32),
        "ast": np.array([row.reply for row in rows], np.int32),
        "temp": np.array([row.temperature for row in rows], np.float32),
        "kind": np.array([row.kind for row in rows], np.uint8),
        "dropped": np.array([shard.dropped[reason] for reason in REASONS], np.int64),
    }
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **columns)
    write_file(path, lambda part: part.write_bytes(buffer.getvalue()))
