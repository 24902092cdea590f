"""A study as still pictures: intervals side by side, budgets, stages, depths. It adds nothing up."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..errors import InputError
from ..intervals import Interval
from ..report import Chosen, acceptance
from ..study import Cell, Study, accepted, drafts, stage_milliseconds, tau, times_faster
from . import style
from .curves import LOOKS, Line, Panel, curves
from .results import stage_bars

COLUMNS, WIDTH, ROW, FRAME = 4, 2.9, 0.24, 0.95  # panels abreast; inches: a panel, a row, what stands around rows
BAR_HEIGHT = 1.7  # inches of a histogram


def pictures(chosen: Chosen) -> dict[str, Figure]:
    """Every picture of a study by the stem of its file; those of a temperature end in it."""
    made: dict[str, Figure] = {}
    for temperature in chosen.study.temperatures:
        cells, end = chosen.at(temperature), f"-T{temperature:g}"
        made["tau" + end] = by_suite(chosen, cells, "tokens a round", lambda c, p: tau(chosen.study, c, p))
        base = chosen.study.baseline(temperature)
        if base:
            faster = lambda c, p, base=base: times_faster(chosen.study, c, base, p)  # noqa: E731
            made["speedup" + end] = by_suite(chosen, cells, "times ar's tokens/s", faster)
        stages = {label(cell): stage_milliseconds(chosen.study, cell, chosen.test) for cell in cells}
        made["stages" + end] = stage_bars(stages)
        drafting = [cell for cell in cells if drafts(chosen.study, cell, chosen.test)]
        if drafting:
            made["acceptance" + end] = depths(chosen, drafting)
            counts = {label(cell): accepted(chosen.study, cell, chosen.test) for cell in drafting}
            made["rejections" + end] = histograms(counts, "first token not accepted, depth", first=1)
        if base and any(len(chosen.study.of(cell.variant, temperature)) > 1 for cell in cells):
            made["budgets" + end] = budgets(chosen.study, temperature)
    return made


def label(cell: Cell) -> str:
    """The variant, and its budget if it has one."""
    return cell.variant if cell.budget is None else f"{cell.variant}, {cell.budget}"


# --- Intervals ------------------------------------------------------------------------------------------------


def by_suite(chosen: Chosen, cells: Sequence[Cell], x_label: str, number: Callable[..., Interval | None]) -> Figure:
    """A panel a suite and one of all: a row a cell, on the half that no budget was chosen on."""
    parts = {suite: [p for p in chosen.test if p.suite == suite] for suite in chosen.study.suites}
    panels = {
        name: {label(cell): number(cell, prompts) for cell in cells}
        for name, prompts in {**parts, "all": chosen.test}.items()
    }
    return forest(panels, x_label)


def forest(panels: Mapping[str, Mapping[str, Interval | None]], x_label: str) -> Figure:
    """Dots with bars, a row a label (the same ones in every panel). Raises InputError for nothing to draw."""
    labels = list(dict.fromkeys(name for rows in panels.values() for name in rows))
    if not labels:
        raise InputError("no interval to draw")
    across = min(COLUMNS, len(panels))
    down = math.ceil(len(panels) / across)
    with style.context():
        size = (WIDTH * across, down * (FRAME + ROW * len(labels)))
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(down, across, sharey=True, squeeze=False).ravel()
        for ax, (title, rows) in zip(axes, panels.items(), strict=False):
            _forest(ax, title, [rows.get(name) for name in labels], x_label)
        for ax in axes[len(panels) :]:
            ax.set_visible(False)
        axes[0].set_yticks(range(len(labels)), labels)
        axes[0].set_ylim(len(labels) - 0.5, -0.5)
    return figure


def _forest(ax: Axes, title: str, intervals: Sequence[Interval | None], x_label: str) -> None:
    for row, one in enumerate(intervals):
        if one:
            ax.plot([one.low, one.high], [row, row], color=style.OKABE_ITO["blue"], linewidth=1.6)
            ax.plot(one.value, row, "o", color=style.OKABE_ITO["blue"], markersize=4)
    ax.axvline(1.0, color=style.FAINT, linestyle=":", linewidth=1.0)
    _plain(ax, title, x_label)


def _plain(ax: Axes, title: str, x_label: str) -> None:
    ax.set_title(title, fontproperties=style.font(style.TITLE_SIZE))
    ax.set_xlabel(x_label, fontproperties=style.font())
    ax.tick_params(labelsize=style.TEXT_SIZE)
    ax.spines[["top", "right"]].set_visible(False)


# --- Curves ---------------------------------------------------------------------------------------------------


def budgets(study: Study, temperature: float) -> Figure:
    """Speed-up and tau over the budget, on all prompts; the first variants that have several, up to what fits."""
    several = [v for v in study.variants if len(study.of(v, temperature)) > 1][: len(LOOKS)]
    base = study.baseline(temperature)
    faster = [_line(study, v, temperature, lambda c: times_faster(study, c, base, study.prompts)) for v in several]
    rounds = [_line(study, v, temperature, lambda c: tau(study, c, study.prompts)) for v in several]
    panels = [
        Panel("Tokens a round", "budget, nodes", "tau", rounds),
        Panel("Speed", "budget, nodes", "times ar's", faster),
    ]
    return curves(panels)


def _line(study: Study, variant: str, temperature: float, number: Callable[[Cell], Interval | None]) -> Line:
    found = [(cell.budget or 0, number(cell)) for cell in study.of(variant, temperature)]
    known = [(budget, one) for budget, one in found if one]
    x, y = [float(budget) for budget, _ in known], [one.value for _, one in known]
    return Line(variant, x, y, [one.low for _, one in known], [one.high for _, one in known])


def depths(chosen: Chosen, cells: Sequence[Cell]) -> Figure:
    """Acceptance by depth; the first cells, up to what can be told apart."""
    shares = {label(cell): acceptance(chosen.study, cell, chosen.test) for cell in cells[: len(LOOKS)]}
    lines = [Line(name, [float(d) for d in range(1, len(y) + 1)], y) for name, y in shares.items()]
    return curves([Panel("Accepted by depth", "depth", "share accepted", lines)])


# --- Histograms -----------------------------------------------------------------------------------------------


def histograms(counts: Mapping[str, Sequence[int]], x_label: str, first: int = 0) -> Figure:
    """A panel a label: shares of its counts, the first one at `first`. Raises InputError for nothing to draw."""
    if not counts:
        raise InputError("no counts to draw")
    across = min(COLUMNS, len(counts))
    down = math.ceil(len(counts) / across)
    with style.context():
        figure = Figure(figsize=(WIDTH * across, BAR_HEIGHT * down + 0.3), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
        for ax, (name, values) in zip(axes, counts.items(), strict=False):
            heights = [value / max(sum(values), 1) for value in values]
            ax.bar(range(first, first + len(values)), heights, color=style.OKABE_ITO["sky"], edgecolor=style.INK)
            _plain(ax, name, x_label)
        for ax in axes[len(counts) :]:
            ax.set_visible(False)
        axes[0].set_ylabel("share of rounds", fontproperties=style.font())
    return figure
