"""Records of an evaluation as JSON lines: what one method took on one prompt under one set of settings.

A file holds two kinds of line. A run says once where a process measured; the records behind it name it:

    {"run": "1f0c...", "started": "2026-01-31T12:00:00+00:00", "torch": "2.13.0", "machine": {...}, ...}
    {"id": "gsm8k-like-01", "suite": "gsm8k-like", "method": "dominotree", ..., "run": "1f0c...", ...}

Files are appended to and survive a kill at any byte: a last line without its end is no record yet, and the next
writer drops it. This file knows neither models nor methods, and adds nothing up.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal

from filelock import FileLock, Timeout

from .errors import InputError
from .files import check_writable
from .strict import no_number, read

HEADS = (b'{"run":"', b'{"id":"')  # how every line of ours begins
DIGEST = 64  # hexadecimal digits of a SHA-256


@dataclass(frozen=True)
class Machine:
    """Processor, number of CPUs, and the GPU's name (None on a CPU)."""

    processor: str
    cpus: int
    gpu: str | None


@dataclass(frozen=True)
class Run:
    """One process that measured: when it started (ISO 8601), and with what. `run` is its id."""

    run: str
    started: str
    dominotree: str  # versions
    python: str
    torch: str
    transformers: str
    threads: int
    machine: Machine


@dataclass(frozen=True)
class Parting:
    """Where a greedy text leaves that of `ar`, and by which margin the target preferred the latter's token there.

    `position` counts the prompt's new tokens over all its turns. A margin near 0 is rounding, anything else a
    fault; None where one text merely ends.
    """

    position: int
    margin: float | None


@dataclass(frozen=True)
class Stages:
    """Seconds that the rounds spent in each stage, added up."""

    draft: float
    build: float
    verify: float
    commit: float


@dataclass(frozen=True)
class BenchRecord:
    """One method on one prompt under one set of settings.

    What a method does not read is None: `ar` has no drafter, chains have no budget, trees that are not corrected
    have no candidates. `child_cap` None is min(M, budget). Raises InputError for numbers that contradict
    each other.
    """

    id: str  # of the prompt
    suite: str
    method: str
    target: str
    drafter: str | None
    temperature: float
    budget: int | None
    candidates: int | Literal["full"] | None
    child_cap: int | None
    seed: int  # the run's own, from which each prompt's follows
    max_new_tokens: int  # a turn
    turns: int
    device: str
    dtype: str
    linear: Literal["plain", "packed"]
    engine: str  # "eager": op by op
    cell: str  # SHA-256 of all settings, the prompt's text and the weights: what is measured once
    run: str
    tokens: int  # that rounds emitted: without the one a turn that prefill yields
    rounds: int
    seconds: float  # decode wall time, without prefill
    prefill_seconds: float
    stages: Stages
    accepted: list[int]  # [n] rounds that accepted n nodes
    reached: list[int]  # [d] rounds whose deepest drafted node lay at depth d
    nodes: int  # verified, the anchors not counted
    token_sha256: str  # of all new token ids, written in decimal with commas between
    divergence: Parting | None  # from `ar`; None if equal, if T > 0, and if `ar` was not run

    def __post_init__(self) -> None:
        for name in ("temperature", "tokens", "rounds", "seconds", "prefill_seconds", "nodes", "seed"):
            self._need(getattr(self, name) >= 0, f"{name} is {getattr(self, name)}: it can't be below 0")
        for name, value in dataclasses.asdict(self.stages).items():
            self._need(value >= 0, f"stages.{name} is {value}: it can't be below 0")
        for name in ("cell", "token_sha256"):
            value = getattr(self, name)
            self._need(len(value) == DIGEST and set(value) <= set("0123456789abcdef"), f"{name} is no SHA-256")
        self._need(self.rounds <= self.tokens, f"{self.tokens} tokens from {self.rounds} rounds: each yields one")
        for name in ("accepted", "reached"):
            counts = getattr(self, name)
            self._need(all(n >= 0 for n in counts), f"{name} counts below 0")
            self._need(sum(counts) == self.rounds, f"{name} counts {sum(counts)} rounds of {self.rounds}")
        drafted = at_least(self.reached)
        fits = len(self.accepted) <= len(drafted)
        fits = fits and all(a <= d for a, d in zip(at_least(self.accepted), drafted, strict=False))
        self._need(fits, "accepted is deeper than reached: what was not drafted can't be accepted")

    def _need(self, true: bool, otherwise: str) -> None:
        if not true:
            raise InputError(otherwise)


def at_least(histogram: Sequence[int]) -> list[int]:
    """[d] the count of d or more. Acceptance at depth d is at_least(accepted)[d] / at_least(reached)[d]."""
    return list(accumulate(reversed(histogram)))[::-1]


@dataclass(frozen=True)
class RecordSet:
    """What a file holds, in its order."""

    runs: dict[str, Run]  # by id
    records: list[BenchRecord]


def load_records(*paths: str | Path) -> RecordSet:
    """The records of these files, joined. A half-written last line is passed over.

    Raises InputError, in one line with file and line, for a file that can't be read, for whatever is not a record
    or a run, for a record whose run is not there, and for a cell that comes twice.
    """
    whole = RecordSet({}, [])
    places: dict[str, str] = {}
    for path in map(Path, paths):
        try:
            data = path.read_bytes()
        except OSError as error:
            raise InputError(f"{path}: can't be read ({error.strerror}): give a file of `dominotree bench`") from None
        for place, line in _finished(data, path):
            try:
                _add(whole, line, places, place)
            except InputError as error:
                raise InputError(f"{place}: {error}") from None
    return whole


def _finished(data: bytes, path: Path) -> Iterator[tuple[str, bytes]]:
    """Every whole line, and where it stands. Raises InputError for a rest that no writer of ours began."""
    *lines, rest = data.split(b"\n")
    if not any(rest.startswith(head) or head.startswith(rest) for head in HEADS):
        raise InputError(f"{path}, line {len(lines) + 1}: not a record, and without an end: give another file")
    for number, line in enumerate(lines, start=1):
        yield f"{path}, line {number}", line


def _add(whole: RecordSet, line: bytes, places: dict[str, str], place: str) -> None:
    try:
        content = json.loads(line.decode("utf-8"), parse_constant=no_number)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:  # bytes that are not UTF-8 are a ValueError, too
        raise InputError(f"not JSON in UTF-8 ({error}): give a file of `dominotree bench`") from None
    if isinstance(content, dict) and "run" in content and not {"id", "cell"} & set(content):
        run: Run = read(Run, content)
        if whole.runs.setdefault(run.run, run) != run:
            raise InputError(f"run {run.run} is already there, and another one")
        return
    record: BenchRecord = read(BenchRecord, content)
    if record.run not in whole.runs:
        raise InputError(f"run {record.run} was not described before it")
    if record.cell in places:
        raise InputError(f"the cell of {record.id}, {record.method} is already at {places[record.cell]}")
    places[record.cell] = place
    whole.records.append(record)


class RecordFile:
    """A file of records that one process at a time goes on writing. Use it in a `with` statement.

    Raises InputError when it is opened: if another process holds it, if it can't be written, or as `load_records`.
    """

    def __init__(self, path: Path, run: Run) -> None:
        self.path, self.run = path, run
        self._lock = FileLock(path.with_name(f".{path.name}.lock"))
        self._file: IO[bytes] | None = None
        self._described = False  # whether this process's run stands in the file

    def __enter__(self) -> RecordFile:
        check_writable(self.path)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise InputError(f"{self.path}: another process writes it; wait for it, or choose another file") from None
        try:
            self._open()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file:
            self._file.close()
        self._lock.release()

    def _open(self) -> None:
        self.records = load_records(self.path).records if self.path.exists() else []
        try:
            self._file = self.path.open("ab", buffering=0)
            if self.records or self._file.tell():
                self._drop_unfinished()
        except OSError as error:
            raise InputError(f"{self.path}: can't be written ({error.strerror}); choose another place") from None

    def _drop_unfinished(self) -> None:
        data = self.path.read_bytes()
        os.truncate(self.path, data.rfind(b"\n") + 1)

    def append(self, record: BenchRecord) -> None:
        """Write a record of this run, for good when this returns. Raises InputError if the disk is full."""
        text = b"" if self._described else _line(self.run)
        text += _line(record)
        assert self._file is not None
        end = self._file.tell()
        try:
            written = self._file.write(text)
            if written != len(text):
                raise OSError("no space is left")
            os.fsync(self._file.fileno())
        except OSError as error:
            os.truncate(self.path, end)
            raise InputError(f"{self.path}: can't be written ({error.strerror or error}); make room") from error
        self._described = True
        self.records.append(record)


def _line(content: Run | BenchRecord) -> bytes:
    fields: dict[str, Any] = dataclasses.asdict(content)
    return json.dumps(fields, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode() + b"\n"
