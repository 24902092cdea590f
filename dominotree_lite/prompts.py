"""Prompt suites as JSON lines, read strictly. This file knows no model and does not know what prompts are for."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import InputError

FOLDER = Path(__file__).resolve().parent.parent / "data" / "prompts"
DEMO = FOLDER / "demo.jsonl"
LIKE = "-like"  # ends the name of a shipped suite: prompts of our own in the manner of a benchmark
ALL = "all"  # the name of the pooled row in a comparison


@dataclass(frozen=True)
class PromptRow:
    """One conversation: what the user says, turn by turn. Raises InputError for fields of the wrong type."""

    id: str
    suite: str
    turns: tuple[str, ...]

    def __post_init__(self) -> None:
        for name, value in (("id", self.id), ("suite", self.suite)):
            if not _is_text(value):
                raise InputError(f"{name} is {value!r}: give a text that is not empty")
        if self.suite == ALL:
            raise InputError(f"suite {ALL!r} is the name of all suites together: call this one otherwise")
        if not self.turns or not all(_is_text(turn) for turn in self.turns):
            raise InputError("turns must be a list of the user's turns, one text or more, none of them empty")


def load_prompts(*paths: str | Path, limit_per_suite: int | None = None, skip: int = 0) -> list[PromptRow]:
    """The prompts of these files, joined, in their order; of each suite, `limit_per_suite` after the first `skip`.

    A file holds one object a line with `id`, `suite` and `turns` (a list of texts); other keys and blank lines
    are passed over. Raises InputError with file and line for anything else, for an id that comes twice, and if
    nothing is left.
    """
    return select(read_prompts(*paths), limit_per_suite, skip)


def suite_files(names: Sequence[str] | None = None) -> list[Path]:
    """Files of the shipped suites in the manner of benchmarks, all if None. Raises InputError for an unknown name."""
    there = {path.stem: path for path in sorted(FOLDER.glob(f"*{LIKE}.jsonl"))}
    if strange := [name for name in names or () if name not in there]:
        raise InputError(f"no shipped suite {strange[0]!r}; there are {', '.join(there)}")
    return list(there.values()) if names is None else [there[name] for name in names]


def read_prompts(*paths: str | Path) -> list[PromptRow]:
    """All prompts of these files, joined, in their order; raises as `load_prompts`."""
    rows: list[PromptRow] = []
    places: dict[str, str] = {}
    for path in map(Path, paths):
        for number, line in _numbered_lines(path):
            place = f"{path}, line {number}"
            row = _parse(line, place)
            if row.id in places:
                raise InputError(f"{place}: id {row.id!r} is already at {places[row.id]}: ids must differ")
            places[row.id] = place
            rows.append(row)
    return rows


def _numbered_lines(path: Path) -> list[tuple[int, str]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}: save it as UTF-8") from None
    except OSError as error:
        raise InputError(f"{path}: can't be read ({error.strerror}): give a file of prompts, one JSON a line") from None
    # Not splitlines: JSON allows U+2028 and its like within a string.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise InputError(f'{path}: empty: write one object a line, {{"id": "1", "suite": "mine", "turns": ["Hi"]}}')
    return lines


def _parse(line: str, place: str) -> PromptRow:
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: not JSON ({error}): write one whole object on each line") from None
    if not isinstance(record, dict):
        raise InputError(f'{place}: not an object: write {{"id": ..., "suite": ..., "turns": [...]}}')
    if missing := [key for key in ("id", "suite", "turns") if key not in record]:
        raise InputError(f"{place}: no {', '.join(missing)}: every prompt needs id, suite and turns")
    turns = record["turns"]
    try:
        return PromptRow(record["id"], record["suite"], tuple(turns) if isinstance(turns, list) else ())
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


def _is_text(value: Any) -> bool:
    """Whether it can be tokenized and seen: half a surrogate pair, which JSON allows, can't."""
    return isinstance(value, str) and bool(value.strip()) and value == value.encode("utf-8", "ignore").decode()


def select(rows: Iterable[PromptRow], limit: int | None, skip: int) -> list[PromptRow]:
    """Of each suite, `limit` prompts (None: all) after the first `skip`. Raises InputError if none is left."""
    if skip < 0 or (limit is not None and limit < 1):
        raise InputError(f"limit {limit}, skip {skip}: give a limit of 1 or more and a skip of 0 or more")
    seen: Counter[str] = Counter()
    kept = []
    for row in rows:
        seen[row.suite] += 1
        if skip < seen[row.suite] and (limit is None or seen[row.suite] <= skip + limit):
            kept.append(row)
    if not kept:
        raise InputError(f"no prompt is left: no suite has more than {skip}, skip fewer")
    return kept
