"""Records of one evaluation, paired and added up: rates and ratios with intervals, and budgets chosen on a half.

A row of what is resampled is a conversation: all seeds and all compared cells of it stay together. This file reads
records only; it measures, lays out and draws nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import InputError
from .intervals import (
    Interval,
    Statistic,
    difference_of_ratios,
    geometric_mean,
    over_groups,
    ratio_of_ratios,
    ratio_of_sums,
)
from .records import BenchRecord, RecordSet, Run

BASELINE = "ar"
STAGES = ("draft", "build", "verify", "commit")
TOKENS, ROUNDS, SECONDS, FIELDS = 0, 1, 2, 3  # columns of a cell


@dataclass(frozen=True, order=True)
class Conditions:
    """What must be the same for numbers to be compared. `threads` and what follows are the process's."""

    target: str
    device: str
    dtype: str
    linear: str
    engine: str
    max_new_tokens: int
    threads: int
    machine: str

    @classmethod
    def of(cls, record: BenchRecord, run: Run) -> Conditions:
        """Those a record was made under."""
        machine = run.machine.gpu or f"{run.machine.processor}, {run.machine.cpus} CPUs"
        shared = (record.target, record.device, record.dtype, record.linear, record.engine, record.max_new_tokens)
        return cls(*shared, run.threads, machine)

    def __str__(self) -> str:
        shown = f"{self.target}, {self.dtype}, {self.linear} linear layers, {self.engine}, {self.device}"
        return f"{shown} ({self.machine}, {self.threads} threads), {self.max_new_tokens} new tokens a turn at most"


@dataclass(frozen=True)
class Cell:
    """A variant of a method (named as `variant_names` does) with a budget, None for a chain, at a temperature."""

    variant: str
    budget: int | None
    temperature: float

    @property
    def method(self) -> str:
        """Without what tells its variants apart."""
        return self.variant.partition(" ")[0]


@dataclass(frozen=True, order=True)
class Prompt:
    """A conversation: what is resampled."""

    suite: str
    id: str


@dataclass(frozen=True)
class Halves:
    """Prompts to choose a budget on, and prompts to report on."""

    choosing: list[Prompt]
    test: list[Prompt]


@dataclass(frozen=True)
class Study:
    """All records made under the same conditions, by cell and prompt; a list holds a prompt's seeds."""

    conditions: Conditions
    cells: dict[Cell, dict[Prompt, list[BenchRecord]]]

    @property
    def prompts(self) -> list[Prompt]:
        """Sorted."""
        return sorted({prompt for measured in self.cells.values() for prompt in measured})

    @property
    def suites(self) -> list[str]:
        """Sorted."""
        return sorted({prompt.suite for prompt in self.prompts})

    @property
    def temperatures(self) -> list[float]:
        """From cold to warm."""
        return sorted({cell.temperature for cell in self.cells})

    @property
    def variants(self) -> list[str]:
        """`ar` first, then methods in the records' order, the variants of each side by side, small numbers first."""
        methods = list(dict.fromkeys(cell.method for cell in self.cells))
        names = {cell.variant: methods.index(cell.method) for cell in self.cells}
        return sorted(names, key=lambda name: (name != BASELINE, names[name], _numbers_apart(name)))

    def of(self, variant: str, temperature: float) -> list[Cell]:
        """Its cells, from the smallest budget to the largest."""
        found = [cell for cell in self.cells if (cell.variant, cell.temperature) == (variant, temperature)]
        return sorted(found, key=lambda cell: cell.budget or 0)

    def baseline(self, temperature: float) -> Cell | None:
        """The cell of `ar`, where it was run."""
        return next(iter(self.of(BASELINE, temperature)), None)

    def shared(self, cells: Sequence[Cell], prompts: Collection[Prompt]) -> list[Prompt]:
        """Those of these prompts on which all these cells were measured."""
        return [prompt for prompt in prompts if all(prompt in self.cells[cell] for cell in cells)]


def _numbers_apart(name: str) -> list[str | int]:
    """Text and numbers in turn, so that M=64 comes before M=512."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


# --- From records to studies ---------------------------------------------------------------------------------


def studies(records: RecordSet) -> list[Study]:
    """One for each set of conditions, in their order. Raises InputError if there is no record."""
    if not records.records:
        raise InputError("there are no records to report on: `dominotree bench` writes some")
    groups: dict[Conditions, list[BenchRecord]] = defaultdict(list)
    for record in records.records:
        groups[Conditions.of(record, records.runs[record.run])].append(record)
    return [_study(conditions, groups[conditions]) for conditions in sorted(groups)]


def _study(conditions: Conditions, records: Sequence[BenchRecord]) -> Study:
    names = variant_names(records)
    cells: dict[Cell, dict[Prompt, list[BenchRecord]]] = {}
    for record in records:
        cell = Cell(names[_made_of(record)], record.budget, record.temperature)
        cells.setdefault(cell, {}).setdefault(Prompt(record.suite, record.id), []).append(record)
    return Study(conditions, cells)


_Made = tuple[str, object, object, object]  # method, candidates, child cap, drafter


def _made_of(record: BenchRecord) -> _Made:
    return record.method, record.candidates, record.child_cap, record.drafter


def variant_names(records: Iterable[BenchRecord]) -> dict[_Made, str]:
    """The method's name, followed by what tells its variants apart: candidates, child cap, drafter."""
    made = list(dict.fromkeys(map(_made_of, records)))
    names = {}
    for one in made:
        rivals = [other for other in made if other[0] == one[0]]
        told = [f"{sign}{one[i]}" for i, sign in ((1, "M="), (2, "k="), (3, "")) if len({r[i] for r in rivals}) > 1]
        names[one] = " ".join([one[0], *told])
    return names


# --- Adding up ------------------------------------------------------------------------------------------------


def sums(study: Study, cells: Sequence[Cell], prompts: Collection[Prompt]) -> list[NDArray[np.float64]]:
    """A group a suite, [prompts, 3 * cells]: tokens, rounds and seconds of each cell, added over seeds."""
    groups: dict[str, list[list[float]]] = defaultdict(list)
    for prompt in sorted(study.shared(cells, prompts)):
        groups[prompt.suite].append([value for cell in cells for value in _sum(study.cells[cell][prompt])])
    return [np.array(group) for group in groups.values()]


def _sum(seeds: Sequence[BenchRecord]) -> list[float]:
    return [sum(getattr(one, name) for one in seeds) for name in ("tokens", "rounds", "seconds")]


def tau(study: Study, cell: Cell, prompts: Collection[Prompt]) -> Interval | None:
    """Tokens a round, pooled; None where nothing was measured."""
    return _interval(study, [cell], prompts, ratio_of_sums(TOKENS, ROUNDS))


def tokens_per_second(study: Study, cell: Cell, prompts: Collection[Prompt]) -> Interval | None:
    """Of decoding without prefill, pooled."""
    return _interval(study, [cell], prompts, ratio_of_sums(TOKENS, SECONDS))


def times_faster(study: Study, cell: Cell, other: Cell | None, prompts: Collection[Prompt]) -> Interval | None:
    """The ratio of tokens a second on the prompts that both have, resampled in pairs; speed-up, if `other` is `ar`."""
    return _interval(study, [cell, other], prompts, _RATE_RATIO) if other else None


def mean_times_faster(study: Study, cell: Cell, other: Cell | None, prompts: Collection[Prompt]) -> Interval | None:
    """The geometric mean over suites of the same."""
    return _interval(study, [cell, other], prompts, geometric_mean(_RATE_RATIO)) if other else None


def tau_above(study: Study, cell: Cell, other: Cell, prompts: Collection[Prompt]) -> Interval | None:
    """tau minus that of `other`, in pairs."""
    columns = ((TOKENS, ROUNDS), (FIELDS + TOKENS, FIELDS + ROUNDS))
    return _interval(study, [cell, other], prompts, difference_of_ratios(*columns))


_RATE_RATIO = ratio_of_ratios((TOKENS, SECONDS), (FIELDS + TOKENS, FIELDS + SECONDS))


def _interval(
    study: Study, cells: Sequence[Cell], prompts: Collection[Prompt], statistic: Statistic
) -> Interval | None:
    groups = sums(study, cells, prompts)
    return over_groups(groups, statistic) if groups else None


def stage_milliseconds(study: Study, cell: Cell, prompts: Collection[Prompt]) -> dict[str, float]:
    """Mean milliseconds a round of each stage; zeros if there was no round."""
    taken = _records(study, cell, prompts)
    rounds = sum(one.rounds for one in taken) or 1
    return {stage: 1000 * sum(getattr(one.stages, stage) for one in taken) / rounds for stage in STAGES}


def accepted(study: Study, cell: Cell, prompts: Collection[Prompt]) -> list[int]:
    """[n] rounds that accepted n nodes: their first rejection, or the end of what was drafted, is at depth n + 1."""
    return _added(one.accepted for one in _records(study, cell, prompts))


def reached(study: Study, cell: Cell, prompts: Collection[Prompt]) -> list[int]:
    """[d] rounds whose deepest drafted node lay at depth d."""
    return _added(one.reached for one in _records(study, cell, prompts))


def drafts(study: Study, cell: Cell, prompts: Collection[Prompt]) -> bool:
    """Whether any round drafted a node: plain decoding, whoever's, has no depths to show."""
    return len(reached(study, cell, prompts)) > 1


def _records(study: Study, cell: Cell, prompts: Collection[Prompt]) -> list[BenchRecord]:
    return [one for prompt in study.shared([cell], prompts) for one in study.cells[cell][prompt]]


def _added(histograms: Iterable[Sequence[int]]) -> list[int]:
    total: list[int] = []
    for counts in histograms:
        total += [0] * (len(counts) - len(total))
        for n, count in enumerate(counts):
            total[n] += count
    while total and not total[-1]:  # a depth that no round has is none
        total.pop()
    return total


# --- Choosing a budget ----------------------------------------------------------------------------------------


def halves(study: Study) -> Halves:
    """Every suite cut in two by the hash of its ids: the same for every method, temperature, and order of records.

    Where a suite's number is odd, the half to choose on has one more. Raises InputError if the other one is empty.
    """
    found = Halves([], [])
    for suite in study.suites:
        ids = sorted(
            (p for p in study.prompts if p.suite == suite), key=lambda p: hashlib.sha256(p.id.encode()).digest()
        )
        found.choosing.extend(ids[::2])
        found.test.extend(ids[1::2])
    if not found.test:
        raise InputError("every suite has one prompt: a budget is chosen on one half and reported on the other")
    return found


def choose(study: Study, variant: str, temperature: float, prompts: Collection[Prompt]) -> Cell | None:
    """The fastest cell of a variant on these prompts, the smallest of equals; None if none was measured there.

    Fast is the speed-up over `ar`, where it was run, so that a cell measured on fewer prompts isn't favoured.
    """
    baseline = study.baseline(temperature)
    rates = {cell: _speed(study, cell, baseline, prompts) for cell in study.of(variant, temperature)}
    known = {cell: rate for cell, rate in rates.items() if rate is not None}
    return max(known, key=known.__getitem__, default=None)


def _speed(study: Study, cell: Cell, baseline: Cell | None, prompts: Collection[Prompt]) -> float | None:
    groups = sums(study, [cell, baseline] if baseline else [cell], prompts)
    if not groups:
        return None
    total = [np.sum([group.sum(0) for group in groups], axis=0)[None]]
    return float((_RATE_RATIO if baseline else ratio_of_sums(TOKENS, SECONDS))(total)[0])
