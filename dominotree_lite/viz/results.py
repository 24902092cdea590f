"""Results as still pictures: how far scores can be believed, and where a round's time goes. It measures nothing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..calibration import Nodes, reliability_by_promise
from ..errors import InputError
from . import style
from .curves import Line, Panel, curves

STAGES = {"draft": ("sky", ""), "build": ("orange", "///"), "verify": ("blue", ""), "commit": ("yellow", "...")}
IDEAL = Line("as promised", [0.0, 1.0], [0.0, 1.0])
BAR, FRAME = 0.42, 1.5  # inches: a bar with its gap, and what stands around them


def reliability(groups: Mapping[str, Nodes], bins: int = 10) -> Figure:
    """A curve a group: the share of nodes that the target accepted over what was promised, beside the diagonal.

    Bins of equal promise, with Wilson's 95 % bars, which take nodes as independent. Raises InputError for no group,
    for a group without nodes, and for more groups than can be told apart.
    """
    if not groups:
        raise InputError("no nodes to draw the reliability of")
    lines = []
    for label, nodes in groups.items():
        found = reliability_by_promise(nodes.predicted, nodes.hit, bins)
        x, y = [b.predicted for b in found], [b.realised for b in found]
        lines.append(Line(label, x, y, [b.low for b in found], [b.high for b in found]))
    return curves([Panel("Reliability of scores", "promised probability", "share accepted", [*lines, IDEAL])])


def stage_bars(milliseconds: Mapping[str, Mapping[str, float]]) -> Figure:
    """A bar a method: the milliseconds a round of its stages, one behind the other, with their sum.

    As `Comparison.stages` gives them. Raises InputError for no method, for another stage, and for a time that is
    negative or not finite.
    """
    if not milliseconds:
        raise InputError("no method to draw the stages of")
    for method, stages in milliseconds.items():
        if set(stages) != set(STAGES):
            raise InputError(f"{method}: the stages are {', '.join(STAGES)}, not {', '.join(stages)}")
        if not all(0 <= value < np.inf for value in stages.values()):
            raise InputError(f"{method}: a stage takes 0 milliseconds or more")
    with style.context():
        figure = Figure(figsize=(7.0, FRAME + BAR * len(milliseconds)), dpi=100, layout="constrained")
        FigureCanvasAgg(figure)
        _bars(figure.subplots(), milliseconds)
    return figure


def _bars(ax: Axes, milliseconds: Mapping[str, Mapping[str, float]]) -> None:
    places = np.arange(len(milliseconds))
    left = np.zeros(len(milliseconds))
    for stage, (colour, hatch) in STAGES.items():
        lengths = np.array([stages[stage] for stages in milliseconds.values()])
        bars = ax.barh(places, lengths, left=left, height=0.7, label=stage, color=style.OKABE_ITO[colour], hatch=hatch)
        for bar in bars:
            bar.set(edgecolor=style.INK, linewidth=0.8)
        left += lengths
    for place, total in zip(places, left, strict=True):
        ax.annotate(f" {total:.1f}", (total, place), va="center", fontproperties=style.font())
    ax.set_yticks(places, list(milliseconds), fontproperties=style.font())
    ax.invert_yaxis()
    ax.margins(x=0.12)
    ax.set_xlabel("milliseconds a round", fontproperties=style.font())
    ax.tick_params(labelsize=style.TEXT_SIZE)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(STAGES), frameon=False, prop=style.font())
