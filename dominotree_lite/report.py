"""The tables of a study: what was measured, at budgets chosen on other prompts, and what choosing on the test adds.

Rates and ratios come from `study`, the written forms from `tables`. This file draws nothing and writes no file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from .errors import InputError
from .intervals import Interval
from .records import at_least
from .study import (
    STAGES,
    Cell,
    Prompt,
    Study,
    accepted,
    choose,
    drafts,
    halves,
    mean_times_faster,
    reached,
    stage_milliseconds,
    tau,
    tau_above,
    times_faster,
    tokens_per_second,
)
from .tables import Cell as TableCell
from .tables import Table

PREFERRED = "dominotree"  # what the others are compared with
Number = Callable[[Cell, Collection[Prompt]], Interval | None]


@dataclass(frozen=True)
class Chosen:
    """A study with the cell of each variant and temperature that was fastest on one half, to be read on the other."""

    study: Study
    choosing: list[Prompt]
    test: list[Prompt]
    cells: list[Cell]  # by temperature, `ar` first

    @classmethod
    def on_half(cls, study: Study) -> Chosen:
        """Raises InputError where a half has no prompts."""
        both = halves(study)
        found = [choose(study, v, t, both.choosing) for t in study.temperatures for v in study.variants]
        return cls(study, both.choosing, both.test, [cell for cell in found if cell])

    def at(self, temperature: float) -> list[Cell]:
        """The cells of one temperature."""
        return [cell for cell in self.cells if cell.temperature == temperature]


def tables(study: Study, against: str | None = None) -> list[Table]:
    """All of them; `against` is what others are compared with (dominotree, where there is one).

    Raises InputError where it was not measured, and where a half of the prompts is empty.
    """
    chosen = Chosen.on_half(study)
    return [
        tau_table(chosen),
        speed_table(chosen),
        paired_table(chosen, against),
        inflation_table(chosen),
        budget_table(study),
        stage_table(chosen),
        acceptance_table(chosen),
        rejection_table(chosen),
        losslessness_table(study),
        parting_table(study),
    ]


# --- At chosen budgets ----------------------------------------------------------------------------------------


def tau_table(chosen: Chosen) -> Table:
    """Tokens a round, a column a suite."""
    caption = "Tokens a round, on the half of the prompts that no budget was chosen on"
    return _by_suite("tau", caption, chosen, lambda cell, prompts: tau(chosen.study, cell, prompts))


def speed_table(chosen: Chosen) -> Table:
    """Speed-up over `ar` on the same prompts, a column a suite, and the geometric mean over suites."""
    study = chosen.study

    def number(cell: Cell, prompts: Collection[Prompt]) -> Interval | None:
        return times_faster(study, cell, study.baseline(cell.temperature), prompts)

    caption = "Tokens a second over those of ar, on the half of the prompts that no budget was chosen on"
    table = _by_suite("speedup", caption, chosen, number)
    means = [mean_times_faster(study, c, study.baseline(c.temperature), chosen.test) for c in chosen.cells]
    rows = [[*row, mean] for row, mean in zip(table.rows, means, strict=True)]
    return Table(table.name, caption, [*table.header, "geometric mean"], rows)


def _by_suite(name: str, caption: str, chosen: Chosen, number: Number) -> Table:
    study = chosen.study
    within = {suite: [p for p in chosen.test if p.suite == suite] for suite in study.suites}
    rows: list[list[TableCell]] = []
    for cell in chosen.cells:
        numbers = [number(cell, prompts) for prompts in (*within.values(), chosen.test)]
        rows.append([*_named(cell), len(study.shared([cell], chosen.test)), *numbers])
    return Table(name, caption, [*NAMED, "prompts", *within, "all"], rows)


NAMED = ("T", "method", "budget")


def _named(cell: Cell) -> list[TableCell]:
    return [f"{cell.temperature:g}", cell.variant, cell.budget]


def paired_table(chosen: Chosen, against: str | None = None) -> Table:
    """Every method against one, on the prompts that both have."""
    study, name = chosen.study, against or _preferred(chosen.study)
    if name not in study.variants:
        raise InputError(f"no method {name!r} in the records; there are {', '.join(study.variants)}")
    others = {cell.temperature: cell for cell in chosen.cells if cell.variant == name}
    rows: list[list[TableCell]] = []
    for cell in chosen.cells:
        other = others.get(cell.temperature)
        if other and other != cell:
            above = tau_above(study, cell, other, chosen.test)
            rows.append([*_named(cell), above, times_faster(study, cell, other, chosen.test)])
    caption = f"Against {name}, prompt by prompt: intervals that leave out 0 and 1 tell the two apart"
    return Table("paired", caption, [*NAMED, "tau minus its", "times its tokens/s"], rows)


def _preferred(study: Study) -> str:
    own = [cell.variant for cell in study.cells if cell.method == PREFERRED]
    return next((name for name in study.variants if name in own), study.variants[-1])


def inflation_table(chosen: Chosen) -> Table:
    """The speed-up on the test half, its budget chosen on the other half, on this one, and on each suite of it."""
    study, rows = chosen.study, []
    for cell in chosen.cells:
        if len(study.of(cell.variant, cell.temperature)) > 1:
            rows.append(_inflated(chosen, cell))
    caption = "The same prompts, their budget chosen on others (held out) and on themselves: what choosing adds"
    header = [*NAMED[:2], "held-out budget", "speed-up", "test budget", "speed-up so chosen", "times more"]
    return Table("inflation", caption, [*header, "budgets a suite", "geometric mean", "mean so chosen"], rows)


def _inflated(chosen: Chosen, held_out: Cell) -> list[TableCell]:
    study, (temperature, name, budget) = chosen.study, _named(held_out)
    base = study.baseline(held_out.temperature)
    on_test = choose(study, held_out.variant, held_out.temperature, chosen.test) or held_out
    best, mean = [], 1.0
    for suite in study.suites:
        prompts = [p for p in chosen.test if p.suite == suite]
        cell = choose(study, held_out.variant, held_out.temperature, prompts)
        faster = times_faster(study, cell, base, prompts) if cell else None
        if cell and faster:
            best.append(cell.budget)
            mean *= faster.value
    return [
        *(temperature, name, budget, times_faster(study, held_out, base, chosen.test)),
        *(on_test.budget, times_faster(study, on_test, base, chosen.test)),
        times_faster(study, on_test, held_out, chosen.test),
        ", ".join(map(str, best)),
        mean_times_faster(study, held_out, base, chosen.test),
        mean ** (1 / len(best)) if best else None,
    ]


def stage_table(chosen: Chosen) -> Table:
    """Milliseconds of a round."""
    rows: list[list[TableCell]] = []
    for cell in chosen.cells:
        parts = stage_milliseconds(chosen.study, cell, chosen.test)
        rows.append([*_named(cell), *parts.values(), sum(parts.values())])
    return Table("stages", "Milliseconds of a round, stage by stage", [*NAMED, *STAGES, "together"], rows)


def acceptance_table(chosen: Chosen) -> Table:
    """Of the rounds that drafted so deep, the share that accepted so deep."""
    numbers = {cell: acceptance(chosen.study, cell, chosen.test) for cell in chosen.cells}
    deepest = max(map(len, numbers.values()), default=0)
    rows = [[*_named(c), *shares, *[None] * (deepest - len(shares))] for c, shares in numbers.items() if shares]
    header = [*NAMED, *(f"depth {d}" for d in range(1, deepest + 1))]
    return Table("acceptance", "Of the rounds that drafted to a depth, the share accepted to it", header, rows)


def acceptance(study: Study, cell: Cell, prompts: Collection[Prompt]) -> list[float]:
    """[d - 1] of the rounds whose draft reached depth d, the share that accepted d nodes or more."""
    kept, drafted = at_least(accepted(study, cell, prompts)), at_least(reached(study, cell, prompts))
    return [(kept[d] if d < len(kept) else 0) / drafted[d] for d in range(1, len(drafted))]


def rejection_table(chosen: Chosen) -> Table:
    """The share of rounds that ended at each depth: by the first rejection, or where nothing more was drafted."""
    study, test = chosen.study, chosen.test
    numbers = {cell: accepted(study, cell, test) for cell in chosen.cells if drafts(study, cell, test)}
    most = max(map(len, numbers.values()), default=0)
    rows: list[list[TableCell]] = []
    for cell, counts in numbers.items():
        shares = [count / max(sum(counts), 1) for count in counts]
        rows.append([*_named(cell), *shares, *[0.0] * (most - len(shares))])
    caption = "The share of rounds whose first token that was not accepted stood at a depth"
    return Table("rejections", caption, [*NAMED, *(f"depth {n + 1}" for n in range(most))], rows)


# --- On all prompts -------------------------------------------------------------------------------------------


def budget_table(study: Study) -> Table:
    """Every budget. It describes: the best line of it is a choice made on these prompts."""
    rows: list[list[TableCell]] = []
    for temperature in study.temperatures:
        base = study.baseline(temperature)
        for cell in (cell for variant in study.variants for cell in study.of(variant, temperature)):
            milliseconds = sum(stage_milliseconds(study, cell, study.prompts).values())
            rate = tokens_per_second(study, cell, study.prompts)
            faster = times_faster(study, cell, base, study.prompts)
            count = len(study.shared([cell], study.prompts))
            rows.append([*_named(cell), count, tau(study, cell, study.prompts), milliseconds, rate, faster])
    header = [*NAMED, "prompts", "tau", "ms a round", "tokens/s", "speed-up"]
    return Table("budgets", "Every budget, on all prompts", header, rows)


def losslessness_table(study: Study) -> Table:
    """How many greedy texts are those of `ar`; of the others, the largest margin the target had where they part."""
    rows: list[list[TableCell]] = []
    base = study.baseline(0.0)
    for cell in (c for v in study.variants for c in study.of(v, 0.0) if base):
        assert base is not None
        texts = [one for p in study.shared([cell, base], study.prompts) for one in study.cells[cell][p]]
        parted = [one.divergence for one in texts if one.divergence]
        margins = [abs(one.margin) for one in parted if one.margin is not None]
        rows.append([*_named(cell)[1:], len(texts), len(texts) - len(parted), len(parted), max(margins, default=None)])
    header = ["method", "budget", "texts", "same as ar", "parted", "largest margin"]
    return Table("losslessness", "Greedy texts against those of ar", header, rows)


def parting_table(study: Study) -> Table:
    """Each text that leaves that of `ar`, with the target's margin there: near 0 it is rounding."""
    rows: list[list[TableCell]] = [
        [prompt.suite, prompt.id, *_named(cell)[1:], one.divergence.position, one.divergence.margin]
        for cell, measured in study.cells.items()
        for prompt, seeds in sorted(measured.items())
        for one in seeds
        if one.divergence
    ]
    header = ["suite", "prompt", "method", "budget", "token", "margin"]
    return Table("partings", "Where greedy texts leave those of ar", header, rows)
