"""What is in a corpus: rows, tokens, lengths and repetitions, as statistics.json and in words as card.md.

It reads finished shards. It does not know how they were written.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from ..files import write_json, write_text
from ..target import Target
from .card import CorpusFile, describe_file, device_name, table, versions

STATISTICS, CARD, SECONDS = "statistics.json", "card.md", "seconds.json"
REASONS = (
    "empty turn",
    "short reply",
    "overlap",
)  # why rows are dropped; a shard's `dropped` counts them in this order
TOKEN_BITS = 21  # three tokens fit into one number of 64 bits


@dataclass(frozen=True)
class Part:
    """Rows of a corpus, their tokens, and those of their replies."""

    rows: int
    tokens: int
    reply_tokens: int


@dataclass(frozen=True)
class Lengths:
    """Tokens: mean, quartiles and the longest."""

    mean: float
    first_quartile: float
    median: float
    third_quartile: float
    longest: int


@dataclass(frozen=True)
class Statistics:
    """Everything that statistics.json says. Shares are fractions of the rows, `seconds` those of writing the shards.

    Attributes:
        kinds: names of the numbers that the shards hold under `kind`.
        ended: replies that end with a token the target ends its text with; `cut`: those the row length ended instead.
        repeated_replies: replies that another row has word for word before.
        distinct_3: different runs of three tokens, of all such runs in replies.
    """

    target: str
    device: str
    software: dict[str, str]
    settings: dict[str, Any]
    kinds: list[str]
    all: Part
    by_kind: dict[str, Part]
    by_temperature: dict[str, Part]
    dropped: dict[str, int]
    prompt_length: Lengths
    reply_length: Lengths
    ended: float
    cut: float
    distinct_prompts: int
    repeated_replies: float
    distinct_3: float
    seconds: float
    tokens_per_second: float
    files: list[CorpusFile]


class Rows:
    """The rows of shards, as arrays: ids `flat`, and of each row `start`, `length`, `reply`, `temperature`, `kind`."""

    def __init__(self, paths: list[Path]) -> None:
        columns: dict[str, list[np.ndarray]] = {}
        for path in paths:
            with np.load(path, allow_pickle=False) as file:
                for key in ("flat", "len", "ast", "temp", "kind", "dropped"):
                    columns.setdefault(key, []).append(file[key])
        self.flat, self.temperature, self.kind = (np.concatenate(columns[key]) for key in ("flat", "temp", "kind"))
        self.length, self.reply = (np.concatenate(columns[key]).astype(np.int64) for key in ("len", "ast"))
        self.start = np.cumsum(self.length) - self.length
        self.dropped = np.sum(columns["dropped"], axis=0)

    def part(self, chosen: np.ndarray) -> Part:
        """Counts of the rows where `chosen` [rows] holds."""
        tokens, prompts = int(self.length[chosen].sum()), int(self.reply[chosen].sum())
        return Part(int(chosen.sum()), tokens, tokens - prompts)

    def pieces(self, begin: np.ndarray, end: np.ndarray) -> Counter[bytes]:
        """How often each text between two indices of the rows occurs."""
        spans = zip(self.start + begin, self.start + end, strict=True)
        return Counter(self.flat[first:last].tobytes() for first, last in spans)

    def distinct_3(self) -> float:
        """Share of the runs of three tokens within replies that are different ones."""
        reply_end = np.repeat(self.start + self.length, self.length)
        reply_start = np.repeat(self.start + self.reply, self.length)
        place = np.arange(len(self.flat))
        first = place[(place >= reply_start) & (place + 2 < reply_end)]
        ids = self.flat.astype(np.uint64)
        bits = np.uint64(TOKEN_BITS)
        runs = (ids[first] << (bits * np.uint64(2))) | (ids[first + 1] << bits) | ids[first + 2]
        return len(np.unique(runs)) / max(len(runs), 1)


def write_statistics(
    folder: Path, paths: list[Path], target: Target, settings: dict[str, Any], kinds: tuple[str, ...]
) -> None:
    """Write statistics.json and card.md beside the shards. Raises InputError naming a shard that is damaged."""
    files = [describe_file(path, target.vocab_size) for path in paths]
    rows = Rows(paths)
    every = rows.part(np.ones(len(rows.length), bool))
    last = rows.flat[rows.start + rows.length - 1] if every.rows else rows.flat
    ended = np.isin(last, sorted(target.eos_ids))
    prompts, replies = rows.pieces(0 * rows.reply, rows.reply), rows.pieces(rows.reply, rows.length)
    seconds = sum(_read_seconds(folder).values())
    statistics = Statistics(
        target=target.name,
        device=device_name(target.device),
        software=versions(),
        settings=settings,
        kinds=list(kinds),
        all=every,
        by_kind={name: rows.part(rows.kind == number) for number, name in enumerate(kinds)},
        by_temperature={f"{t:.4g}": rows.part(rows.temperature == t) for t in np.unique(rows.temperature)},
        dropped=dict(zip(REASONS, rows.dropped.tolist(), strict=True)),
        prompt_length=_lengths(rows.reply),
        reply_length=_lengths(rows.length - rows.reply),
        ended=float(ended.sum()) / max(every.rows, 1),
        cut=float((~ended).sum()) / max(every.rows, 1),
        distinct_prompts=len(prompts),
        repeated_replies=1 - len(replies) / max(every.rows, 1),
        distinct_3=rows.distinct_3(),
        seconds=seconds,
        tokens_per_second=every.tokens / seconds if seconds else 0.0,
        files=files,
    )
    write_text(folder / CARD, render(statistics))
    write_json(folder / STATISTICS, asdict(statistics))


def _lengths(tokens: np.ndarray) -> Lengths:
    if not len(tokens):
        return Lengths(0.0, 0.0, 0.0, 0.0, 0)
    first, median, third = np.percentile(tokens, [25, 50, 75]).tolist()
    return Lengths(float(tokens.mean()), first, median, third, int(tokens.max()))


def add_seconds(folder: Path, name: str, seconds: float) -> None:
    """Note how long a shard took, so that an interrupted corpus knows the time of all its shards."""
    write_json(folder / SECONDS, _read_seconds(folder) | {name: round(seconds, 3)})


def _read_seconds(folder: Path) -> dict[str, float]:
    path = folder / SECONDS
    if not path.exists():
        return {}
    try:
        return {str(name): float(seconds) for name, seconds in json.loads(path.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: can't be read ({error}); delete it") from error


def summary(folder: Path) -> str:
    """The counts of a finished corpus in one line."""
    facts = json.loads((folder / STATISTICS).read_text())
    every = facts["all"]
    return (
        f"{every['rows']:,} rows, {every['tokens']:,} tokens ({every['reply_tokens']:,} in replies)"
        f" in {facts['seconds']:,.1f} s: {facts['tokens_per_second']:,.0f} tokens/s"
    )


def render(facts: Statistics) -> str:
    """card.md: the same facts in words and tables."""
    dropped = sum(facts.dropped.values())
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in facts.dropped.items())
    avoided = facts.settings.get("avoid") or []
    return "\n".join(
        [
            f"# Text written by {facts.target}\n",
            "Conversations of one question and one reply, for training a drafter of this target. Questions were made"
            " up from templates, or begun so and ended by the target, or are wholly its own; replies are all its"
            f" own, and as right or wrong as it is. {facts.all.rows:,} rows, {facts.all.tokens:,} tokens,"
            f" {facts.all.reply_tokens:,} of them in replies. {dropped:,} rows were dropped ({reasons}).\n",
            f"Rows that share 13 tokens in a row with a prompt of {', '.join(avoided)} count as overlap.\n"
            if avoided
            else "No prompts were given to be avoided.\n",
            _parts("By kind", facts.by_kind),
            _parts("By temperature of the reply (0 is greedy)", facts.by_temperature),
            table("Tokens of a prompt", asdict(facts.prompt_length)),
            table("Tokens of a reply", asdict(facts.reply_length)),
            table(
                "Replies and repetition",
                {
                    "ended by the target": facts.ended,
                    "cut at the row length": facts.cut,
                    "different prompts": facts.distinct_prompts,
                    "replies that repeat another": facts.repeated_replies,
                    "different runs of three tokens in replies": facts.distinct_3,
                },
            ),
            table("Settings", facts.settings),
            f"Written in {facts.seconds:,.1f} s, {facts.tokens_per_second:,.0f} tokens/s, on {facts.device}"
            f" ({', '.join(f'{name} {version}' for name, version in facts.software.items())}).\n",
            "## Files\n",
            *[f"- `{file.name}`: {file.rows:,} rows, SHA-256 `{file.sha256}`" for file in facts.files],
            "",
        ]
    )


def _parts(title: str, parts: dict[str, Part]) -> str:
    lines = [f"| {name} | {p.rows:,} | {p.tokens:,} | {p.reply_tokens:,} |" for name, p in parts.items()]
    return "\n".join([f"## {title}\n", "| | rows | tokens | in replies |", "|---|---|---|---|", *lines, ""])
