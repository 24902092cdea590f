"""Numbers over steps or depths as lines, one panel beside the other. It knows neither training nor results.

A line has a colour, a dash pattern and a marker of its own, so that it is told apart without colour too; the same
label looks the same in every panel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ..errors import InputError
from . import style

LOOKS = (
    ("blue", "-", "o"),
    ("vermillion", "--", "s"),
    ("green", "-.", "^"),
    ("purple", ":", "D"),
    ("orange", (0, (5, 1, 1, 1, 1, 1)), "v"),
    ("black", (0, (1, 1)), "x"),
)
PANEL_WIDTH, HEIGHT = 3.4, 3.0  # inches


@dataclass(frozen=True)
class Line:
    """One curve. `x` and `y` are as long as each other; so are the ends of its bars, where it has any."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Panel:
    """Lines over the same axes."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]


def curves(panels: Sequence[Panel]) -> Figure:
    """Panels from left to right with one legend below. Raises InputError for nothing to draw or too many labels."""
    labels = list(dict.fromkeys(line.label for panel in panels for line in panel.lines))
    if not labels:
        raise InputError("no line to draw")
    if len(labels) > len(LOOKS):
        raise InputError(f"{len(labels)} different lines in one picture; {len(LOOKS)} can be told apart")
    with style.context():
        figure = Figure(figsize=(PANEL_WIDTH * len(panels), HEIGHT), layout="constrained")
        FigureCanvasAgg(figure)
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _draw(axes, panel, labels)
        shown = {line.get_label(): line for axes in figure.axes for line in axes.get_lines()}
        handles = [shown[label] for label in labels]
        _legend(figure, handles, min(2 * len(panels), len(labels)))
    return figure


def _legend(figure: Figure, handles: Sequence[Line2D], most: int) -> None:
    """Below all panels, in as many columns as the picture is wide enough for, up to `most`."""
    for columns in range(most, 0, -1):
        legend = figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def _draw(axes: Axes, panel: Panel, labels: Sequence[str]) -> None:
    for line in panel.lines:
        colour, dashes, marker = LOOKS[labels.index(line.label)]
        axes.plot(
            line.x,
            line.y,
            color=style.OKABE_ITO[colour],
            linestyle=dashes,
            marker=marker,
            markersize=4,
            markevery=max(1, len(line.x) // 12),
            label=line.label,
        )
        if len(line.low):
            axes.vlines(line.x, line.low, line.high, color=style.OKABE_ITO[colour], linewidth=1.0)
    axes.set_title(panel.title, fontproperties=style.font(style.TITLE_SIZE))
    axes.set_xlabel(panel.x_label, fontproperties=style.font())
    axes.set_ylabel(panel.y_label, fontproperties=style.font())
    whole = all(float(x).is_integer() for line in panel.lines for x in line.x)
    axes.xaxis.set_major_locator(MaxNLocator(integer=whole, nbins=8, steps=[1, 2, 5, 10]))
    axes.grid(color="#DDDDDD", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=style.TEXT_SIZE)


def summary(panels: Sequence[Panel]) -> str:
    """The same in words, for a picture's alt text: where each line begins and ends."""
    parts = []
    for panel in panels:
        ends = [f"{line.label} from {line.y[0]:.2f} to {line.y[-1]:.2f}" for line in panel.lines if len(line.y)]
        parts.append(f"{panel.title} ({panel.y_label} over {panel.x_label}): {', '.join(ends)}.")
    return " ".join(parts)
