"""The evaluation: every cell on every prompt, in one process, as records that are measured once.

Prompt by prompt, and within a prompt cell by cell, greedy `ar` first and the others begun elsewhere each time: a
machine that slows down slows all alike. A cell whose hash stands in the file is skipped, so the same command goes on
where it was interrupted or killed. This file decodes by `decode` and `peers` and folds; it does not load models,
parse, print, or add up.
"""

from __future__ import annotations

import platform
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import transformers

from . import __version__
from .cells import Cell, Grid, digest, rotated, weights_sha256
from .decode import Result, StageSeconds, decode
from .drafter import Drafter
from .equip import equipped
from .errors import InputError
from .evaluate import (
    BASELINE,
    WARM_UP_TOKENS,
    Drafters,
    check_prompts,
    drafter_of,
    first_divergence,
    machine,
    naming,
    seed_of,
    token_sha256,
)
from .histograms import accepted_nodes, deepest_nodes
from .methods import METHODS, Settings
from .packed import is_packed
from .peers import PEERS, decode_by_peer
from .prompts import PromptRow
from .records import BenchRecord, Machine, Parting, RecordFile, Run, Stages
from .target import Target

ENGINE = "eager"
LARGEST_SEED = 2**53 - 1  # a record's numbers are exact in JSON wherever it is read

KEY = (
    "id", "method", "target", "drafter", "temperature", "budget", "candidates", "child_cap", "seed", "max_new_tokens",
    "device", "dtype", "linear", "engine",
)  # fmt: skip
PLAIN = Cell(BASELINE, 0.0, None, None, None)

Progress = Callable[[PromptRow, Cell], None]  # called after each cell


def describe_run(target: Target) -> Run:
    """This process, on the target's device, under an id of its own."""
    return Run(
        run=uuid.uuid4().hex[:12],
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        dominotree=__version__,
        python=platform.python_version(),
        torch=str(torch.__version__),
        transformers=transformers.__version__,
        threads=torch.get_num_threads(),
        machine=Machine(**machine(target.device)),
    )


@dataclass(frozen=True)
class Job:
    """What is left to do on one prompt, in the order to do it; `baseline` is the hash of `ar`'s tokens, if measured."""

    prompt: PromptRow
    cells: list[Cell]
    baseline: str | None


class Bench:
    """Models and settings of an evaluation. Raises InputError for what can't run, before anything does."""

    def __init__(
        self, target: Target, drafters: Drafters, grid: Grid, max_new_tokens: int = 128, seed: int = 0
    ) -> None:
        if not 0 <= seed <= LARGEST_SEED:
            raise InputError(f"seed {seed}: give 0 or more, up to {LARGEST_SEED}")
        self.target, self.drafters, self.max_new_tokens, self.seed = target, drafters, max_new_tokens, seed
        _check_methods(grid.methods)
        self.settings = {cell: self._settings(cell) for cell in grid.cells(fixed=frozenset(PEERS))}
        self._weights = {id(model): weights_sha256(model) for model in self._models()}

    def run(self, prompts: Sequence[PromptRow], path: Path, progress: Progress | None = None) -> None:
        """Measure what the file lacks; each record is in it for good as soon as it is measured.

        Raises InputError for prompts that don't fit, for a file as `RecordFile`, and for one that holds these cells
        of other weights or texts.
        """
        check_prompts(prompts, self.target)
        with RecordFile(path, describe_run(self.target)) as file:
            jobs = self.jobs(prompts, file.records)
            if jobs:
                self._warm_up(jobs[0].prompt, {cell for job in jobs for cell in job.cells})
            for job in jobs:
                for cell, record in self._measure(job, file.run.run):
                    file.append(record)
                    if progress:
                        progress(job.prompt, cell)

    def jobs(self, prompts: Sequence[PromptRow], records: Sequence[BenchRecord]) -> list[Job]:
        """What these records lack. Raises InputError for a record that is one of these cells, of something else."""
        done = {record.cell: record for record in records}
        named = {_key(asdict(record)): record.cell for record in records}
        jobs = []
        for index, prompt in enumerate(prompts):
            hashes = {cell: self._hash(prompt, cell) for cell in self.settings}
            for cell, value in hashes.items():
                if named.get(_key(self._facts(prompt, cell)), value) != value:
                    raise InputError(
                        f"prompt {prompt.id}, {cell}: already measured with another text, other weights or another "
                        "profile; choose another file"
                    )
            left = [cell for cell in rotated(list(hashes), index) if hashes[cell] not in done]
            left.sort(key=lambda cell: cell != PLAIN)  # what the others are held against comes first
            plain = done.get(hashes.get(PLAIN, ""))
            if left:
                jobs.append(Job(prompt, left, plain.token_sha256 if plain else None))
        return jobs

    # --- Cells ------------------------------------------------------------------------------------------------

    def _settings(self, cell: Cell) -> Settings:
        """All that decodes this cell; for a peer, what it reads of it, under the baseline's name."""
        peer = cell.method in PEERS
        settings = (replace(cell, method=BASELINE) if peer else cell).settings(self.max_new_tokens, self.seed)
        return equipped(settings, self.target, self._drafter(cell))

    def _drafter(self, cell: Cell) -> Drafter | None:
        return None if cell.method in PEERS else drafter_of(cell.method, self.drafters)

    def _models(self) -> list[torch.nn.Module]:
        drafters = filter(None, map(self._drafter, self.settings))
        return [self.target.model, *{drafter.name: drafter.model for drafter in drafters}.values()]

    def _facts(self, prompt: PromptRow, cell: Cell) -> dict[str, Any]:
        """What stands in a record of this cell before anything is measured."""
        drafter = self._drafter(cell)
        return {
            "id": prompt.id,
            "suite": prompt.suite,
            "target": self.target.name,
            "drafter": drafter.name if drafter else None,
            **asdict(cell),
            "seed": self.seed,
            "max_new_tokens": self.max_new_tokens,
            "turns": len(prompt.turns),
            "device": self.target.device.type,
            "dtype": str(self.target.dtype).removeprefix("torch."),
            "linear": "packed" if is_packed(self.target.model) else "plain",
            "engine": ENGINE,
        }

    def _hash(self, prompt: PromptRow, cell: Cell) -> str:
        drafter, settings = self._drafter(cell), self.settings[cell]
        weights = [self._weights[id(model)] for model in (self.target.model, drafter and drafter.model) if model]
        learnt: list[Any] = [one and asdict(one) for one in (settings.costs, settings.chances)]  # type: ignore[call-overload]
        return digest(self._facts(prompt, cell) | {"text": prompt.turns, "weights": weights, "learnt": learnt})

    # --- Measuring ---------------------------------------------------------------------------------------------

    def _warm_up(self, prompt: PromptRow, cells: set[Cell]) -> None:
        """A few tokens of every cell, so that none pays for what the first use of a model or a size costs."""
        for cell in self.settings:
            if cell in cells:
                self._decode(replace(prompt, turns=prompt.turns[:1]), cell, min(WARM_UP_TOKENS, self.max_new_tokens))

    def _measure(self, job: Job, run: str) -> Iterator[tuple[Cell, BenchRecord]]:
        """Each cell's record, as soon as it is measured."""
        baseline: Result | None = None
        for cell in job.cells:
            result = self._decode(job.prompt, cell, self.max_new_tokens)
            if cell == PLAIN:
                baseline = result
            parting = None
            if not cell.temperature and PLAIN in self.settings:
                if baseline is None and (job.baseline is None or job.baseline != token_sha256(result.token_ids)):
                    baseline = self._decode(job.prompt, PLAIN, self.max_new_tokens)  # measured before, not kept
                parting = self._parting(job.prompt, cell, result, baseline) if baseline else None
            yield cell, self._record(job.prompt, cell, result, parting, run)

    def _parting(self, prompt: PromptRow, cell: Cell, result: Result, baseline: Result) -> Parting | None:
        found = first_divergence(prompt.id, cell.method, result, baseline, self.target)
        return Parting(found.position, found.margin) if found else None

    def _decode(self, prompt: PromptRow, cell: Cell, most: int) -> Result:
        settings = replace(self.settings[cell], max_new_tokens=most, seed=seed_of(prompt, self.seed))
        with naming(prompt, cell.method):
            if cell.method in PEERS:
                return decode_by_peer(cell.method, prompt.turns, self.target, settings)
            return decode(prompt.turns, self.target, self._drafter(cell), settings)

    def _record(self, prompt: PromptRow, cell: Cell, result: Result, parting: Parting | None, run: str) -> BenchRecord:
        stages = [asdict(one.seconds) for one in result.rounds]
        return BenchRecord(
            **self._facts(prompt, cell),
            cell=self._hash(prompt, cell),
            run=run,
            tokens=sum(len(one.tokens) for one in result.rounds),
            rounds=len(result.rounds),
            seconds=result.seconds,
            prefill_seconds=result.prefill_seconds,
            stages=Stages(**{name: sum(each[name] for each in stages) for name in asdict(StageSeconds())}),
            accepted=accepted_nodes(result.rounds),
            reached=deepest_nodes(result.rounds),
            nodes=sum(len(one.tree) for one in result.rounds),
            token_sha256=token_sha256(result.token_ids),
            divergence=parting,
        )


def _key(fields: dict[str, Any]) -> tuple[Any, ...]:
    """What names one cell of one prompt to a reader of records."""
    return tuple(fields[name] for name in KEY)


def _check_methods(methods: Sequence[str]) -> None:
    if not methods:
        raise InputError("name one method or more")
    if strange := [name for name in methods if name not in METHODS and name not in PEERS]:
        raise InputError(f"no method {strange[0]!r}; there are {', '.join([*METHODS, *PEERS])}")
