"""The target writes its own training text: a user turn, then the reply a drafter learns to foresee.

A drafter has to match its target, so the best text is what the target itself would say (DFlash, arXiv
2602.06036, section 5: replies are generated anew by the target). Here it also makes up the questions, so no
data set is needed. Rows go to npz shards, each written whole or not at all; corpus.py reads them. This file
does not know drafters or losses.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import GenerationConfig, PreTrainedTokenizerBase

from ..errors import InputError
from ..files import write_file
from ..target import Target
from .folder import claim
from .openings import OPENINGS

SENTINEL = "USERTURN"  # stands for the user's words where a chat template is taken apart
PLAIN_START = 32  # tokens that a target without a chat template writes freely before its "reply"


@dataclass(frozen=True)
class CorpusConfig:
    """What to write. Lengths in tokens, shares as fractions of the rows; a row counts before short ones drop.

    Attributes:
        row_length: no row is longer, prompt and reply together.
        user_length: a user turn is cut after so many tokens (opening words not counted).
        opening_share: rows whose user turn begins with given words.
        greedy_share: rows whose reply is greedy; the others have `reply_temperature`.
        min_p: of the user turn: tokens below this share of the likeliest one's probability are left out.
        min_reply: rows with shorter replies are dropped, and those whose user turn is empty.
        batch: rows written at once.
    """

    rows: int = 4096
    row_length: int = 512
    user_length: int = 192
    opening_share: float = 0.6
    greedy_share: float = 0.6
    reply_temperature: float = 0.8
    user_temperature: float = 1.0
    min_p: float = 0.03
    min_reply: int = 8
    shard_rows: int = 256
    batch: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        counts = (self.rows, self.row_length, self.user_length, self.min_reply, self.shard_rows, self.batch)
        if min(counts) < 1 or self.seed < 0:
            raise InputError("corpus: rows, lengths, shard_rows and batch must be at least 1, the seed 0")
        if not all(0 <= share <= 1 for share in (self.opening_share, self.greedy_share, self.min_p)):
            raise InputError("corpus: opening_share, greedy_share and min_p are fractions of one")
        if min(self.reply_temperature, self.user_temperature) <= 0:
            raise InputError("corpus: temperatures must be above 0 (greedy_share asks for greedy replies)")


@dataclass(frozen=True)
class Row:
    """One finished row: token ids, index of the reply's first, the reply's temperature (0 is greedy)."""

    ids: list[int]
    reply: int
    temperature: float


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
    """A target that writes rows: batches of user turns, then of replies."""

    def __init__(self, target: Target, config: CorpusConfig) -> None:
        self.target, self.config, self.frame = target, config, chat_frame(target)
        assert target.tokenizer is not None  # chat_frame refuses that
        self.tokenizer = target.tokenizer
        self.user_length = config.user_length if self.frame.template else PLAIN_START
        nothing = self.frame.prompt(self.tokenizer, "")
        self.silent = len(nothing) + len(self.frame.after)  # length of a prompt in which nothing is asked
        self._check_room()

    def _check_room(self) -> None:
        """Every row must have room for a reply, and every token a position."""
        config, target = self.config, self.target
        if config.row_length > target.max_positions:
            raise InputError(f"row_length {config.row_length}: {target.name} has {target.max_positions} positions")
        words = [words for domain in OPENINGS.values() for words in domain]
        longest = max(len(self.frame.prompt(self.tokenizer, opening)) for opening in words)
        taken = longest + self.user_length + len(self.frame.after)
        if taken + config.min_reply > config.row_length:
            raise InputError(
                f"row_length {config.row_length} leaves no room for a reply after a prompt of up to {taken}"
                " tokens: raise it or lower user_length"
            )

    def shard(self, index: int, rows: int, advance: Callable[[int], object]) -> list[Row]:
        """The rows of one shard: a function of the settings and its number alone, given the device.

        `advance` is called with the number of rows done, dropped ones included, as they are done.
        """
        config = self.config
        rng = np.random.default_rng([config.seed, index])
        prompts = [self._prompt(rng) for _ in range(rows)]
        greedy = rng.random(rows) < config.greedy_share
        with torch.random.fork_rng(devices=self._devices()), _no_inherited_settings(self.target):
            torch.manual_seed(int(rng.integers(2**62)))
            asked = [ids for part in _chunks(prompts, config.batch) for ids in self._with_user_turn(part)]
            groups = {
                0.0: [ids for ids, chosen in zip(asked, greedy, strict=True) if chosen],
                config.reply_temperature: [ids for ids, chosen in zip(asked, greedy, strict=True) if not chosen],
            }
            return [row for temperature, group in groups.items() for row in self._replies(group, temperature, advance)]

    def _devices(self) -> list[torch.device]:
        return [self.target.device] if self.target.device.type == "cuda" else []

    def _prompt(self, rng: np.random.Generator) -> list[int]:
        domain = list(OPENINGS.values())[rng.integers(len(OPENINGS))]
        words = domain[rng.integers(len(domain))]
        chosen = rng.random() < self.config.opening_share
        ids = self.frame.prompt(self.tokenizer, words if chosen else "")
        return ids or self.frame.prompt(self.tokenizer, words)

    def _with_user_turn(self, prompts: list[list[int]]) -> list[list[int]]:
        """Prompts up to the reply: the user turn written to its end (that token left to the template)."""
        config = self.config
        settings = self._settings(self.frame.ends, self.user_length)
        settings.update(do_sample=True, temperature=config.user_temperature, top_k=0, min_p=config.min_p)
        turns = self._write(prompts, settings, self.frame.ends)
        return [
            prompt + [token for token in turn if token not in self.frame.ends] + self.frame.after
            for prompt, turn in zip(prompts, turns, strict=True)
        ]

    def _replies(self, prompts: list[list[int]], temperature: float, advance: Callable[[int], object]) -> Iterator[Row]:
        """Finished rows, prompts of like length together so that little is padded."""
        config = self.config
        for part in _chunks(sorted(prompts, key=len), config.batch):
            settings = self._settings(self.target.eos_ids, config.row_length - len(part[0]))
            if temperature > 0:
                settings.update(do_sample=True, temperature=temperature, top_k=0)
            for prompt, reply in zip(part, self._write(part, settings, self.target.eos_ids), strict=True):
                reply = reply[: config.row_length - len(prompt)]
                if len(reply) >= config.min_reply and len(prompt) > self.silent:
                    yield Row(prompt + reply, len(prompt), temperature)
            advance(len(part))

    def _settings(self, ends: frozenset[int], length: int) -> GenerationConfig:
        """Plain greedy decoding, up to a token that ends the turn."""
        return GenerationConfig(
            do_sample=False,
            max_new_tokens=length,
            eos_token_id=sorted(ends) or None,
            pad_token_id=min(ends, default=0),
        )

    @torch.inference_mode()
    def _write(self, prompts: list[list[int]], settings: GenerationConfig, ends: frozenset[int]) -> list[list[int]]:
        """What the target writes after each prompt, the token that ended it included."""
        width = max(map(len, prompts))
        ids = torch.zeros(len(prompts), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        device = self.target.device
        out = self.target.model.generate(
            input_ids=ids.to(device), attention_mask=mask.to(device), generation_config=settings
        )
        return [_until(row, ends) for row in out[:, width:].tolist()]


def _until(tokens: list[int], ends: frozenset[int]) -> list[int]:
    """Tokens up to the first that ends the turn, that one included."""
    stop = next((i for i, token in enumerate(tokens) if token in ends), len(tokens) - 1)
    return tokens[: stop + 1]


def _chunks(items: list[list[int]], size: int) -> Iterator[list[list[int]]]:
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]


@contextmanager
def _no_inherited_settings(target: Target) -> Iterator[None]:
    """transformers fills what a GenerationConfig leaves open from the model's own: hide that one."""
    own = target.model.generation_config
    target.model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        target.model.generation_config = own


def write_corpus(target: Target, folder: Path, config: CorpusConfig) -> list[Path]:
    """Write the corpus as shards `corpus-00000.npz`, ... and return their paths, in order.

    Shards that are there already are kept, so a call that was interrupted is simply made again. Raises
    InputError if the folder holds a corpus of another target or other settings.
    """
    author = Author(target, config)
    claim(folder, {"target": target.name, **asdict(config)})
    paths = []
    with tqdm(total=config.rows, unit="row", desc="corpus", disable=None, dynamic_ncols=True) as bar:
        for index, begin in enumerate(range(0, config.rows, config.shard_rows)):
            rows = min(config.shard_rows, config.rows - begin)
            paths.append(folder / f"corpus-{index:05}.npz")
            if not paths[-1].exists():
                _save(paths[-1], author.shard(index, rows, bar.update), target.vocab_size)
            bar.update(begin + rows - bar.n)
    return paths


def _save(path: Path, rows: list[Row], vocab_size: int) -> None:
    """The format that corpus.py reads."""
    columns = {
        "flat": np.array([t for row in rows for t in row.ids], np.uint16 if vocab_size <= 1 << 16 else np.int32),
        "len": np.array([len(row.ids) for row in rows], np.int32),
        "ast": np.array([row.reply for row in rows], np.int32),
        "temp": np.array([row.temperature for row in rows], np.float32),
    }
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **columns)
    write_file(path, lambda part: part.write_bytes(buffer.getvalue()))
