"""Pictures of verification: a tree beside its mask, and logit gaps beside their rounding.

A square is filled where a row sees a column, and only outlined where it does not. Kept rows are bold and say
where in the cache they go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ..errors import InputError
from ..microscope import Rounding
from ..tree import DraftTree
from . import style
from .trees import Decode, draw_tree

CELL, HEAD, EDGE, LABEL = 17.0, 66.0, 10.0, 118.0  # points
MOST_LABELLED, PAGE = 40, 6.5  # rows that get words beside them; inches of a mask of more
PAST_CELLS = 3.0  # width of the block that stands for all committed tokens
FLOOR = 0.3  # of the smallest number above 0: where zeros are drawn on a logarithmic axis


def mask_beside_tree(
    tree: DraftTree, start: int, decode: Decode, accepted: Sequence[int], bonus: int | None = None
) -> Figure:
    """A tree whose anchor stands at position `start`, and the one pass that reads it: ids, positions, mask, commit.

    Raises InputError if `accepted` is not a path from the root.
    """
    names = [f"{node}:{decode(token)}" for node, token in enumerate(tree.tokens.tolist())]
    own = "" if bonus is None else decode(bonus)
    numbered = DraftTree(np.arange(len(tree) + 1), tree.parents, tree.depths, tree.log_probs)
    fig = Figure(dpi=100)
    FigureCanvasAgg(fig)
    with style.context():
        left = draw_tree(
            numbered,
            [*names, own].__getitem__,
            accepted,
            None if bonus is None else len(names),
            ax=fig.add_axes((0.0, 0.0, 1.0, 1.0)),
            title="the tree: node number and token",
        )
        right = fig.add_axes((0.0, 0.0, 1.0, 1.0))
        _matrix(right, tree, names, start, [0, *accepted], "the same tree as one pass")
        _abreast(fig, [left, right])
    return fig


def mask(tree: DraftTree, start: int, decode: Decode, accepted: Sequence[int] = ()) -> Figure:
    """The mask of the pass that reads a tree whose anchor stands at position `start`.

    Up to 40 rows have their token, position and cache row beside them. A larger mask fits on a page, and triangles
    point at its kept rows. Raises InputError if `accepted` is not a path from the root.
    """
    last = accepted[-1] if accepted else 0
    if not 0 <= last <= len(tree) or list(accepted) != tree.path(last):
        raise InputError(f"accepted nodes {list(accepted)} are not a path from the root of this tree")
    fig = Figure(dpi=100)
    FigureCanvasAgg(fig)
    with style.context():
        ax = fig.add_axes((0.0, 0.0, 1.0, 1.0))
        kept = [0, *accepted]
        if len(tree) < MOST_LABELLED:
            names = [f"{node}:{decode(token)}" for node, token in enumerate(tree.tokens.tolist())]
            _matrix(ax, tree, names, start, kept, "a tree as one pass")
            _abreast(fig, [ax])
        else:
            fig.set_size_inches(PAGE, PAGE + 0.3)
            ax.set_position((0.1, 0.08, 0.84, 0.84))
            _page(ax, tree, start, kept)
    return fig


def _page(ax: Axes, tree: DraftTree, start: int, kept: Sequence[int]) -> None:
    """A mask of many rows as one image: 0 hidden, 1 visible, 2 visible to a kept row."""
    cells = tree.ancestors().astype(int)
    cells[kept] *= 2
    colours = ListedColormap([style.PAPER, style.OKABE_ITO["sky"], style.OKABE_ITO["blue"]], "mask")
    ax.imshow(cells, cmap=colours, vmin=0, vmax=2, interpolation="nearest")
    ax.plot([len(tree) + 0.02 * len(cells)] * len(kept), kept, "<", color=style.INK, markersize=5, clip_on=False)
    ax.set_title(
        f"{len(cells)} rows: each sees the {start} committed tokens and the filled columns; ◀ kept",
        fontproperties=style.font(),
        loc="left",
    )
    ax.set_xlabel("column", fontproperties=style.font())
    ax.set_ylabel("row", fontproperties=style.font())
    ax.tick_params(labelsize=style.TEXT_SIZE)


def _abreast(fig: Figure, panels: Sequence[Axes]) -> None:
    """Size the figure so that one unit of each panel is a point, and put the panels side by side."""
    sizes = [(panel.get_xlim()[1], panel.get_ylim()[0]) for panel in panels]
    width, height = sum(w for w, _ in sizes), max(h for _, h in sizes)
    fig.set_size_inches(width / 72, height / 72)
    x = 0.0
    for panel, (w, h) in zip(panels, sizes, strict=True):
        panel.set_position((x / width, 1 - h / height, w / width, h / height))
        x += w


def _matrix(ax: Axes, tree: DraftTree, names: Sequence[str], start: int, kept: Sequence[int], title: str) -> None:
    """Rows are queries, columns keys; the axes have one unit to the point."""
    count = len(names)
    past = EDGE + LABEL + 34
    first = past + PAST_CELLS * CELL + 4
    end = first + count * CELL
    ax.set(xlim=(0, end + 92), ylim=(HEAD + (count + 1) * CELL + EDGE, 0))
    ax.set_axis_off()
    _write(ax, EDGE, 10, f"{title}: a row sees the filled columns", bold=True, size=style.TITLE_SIZE)
    heads = ((EDGE, "row and token"), (past - 34, "position"), (end + 6, "goes to cache row"))
    for x, text in heads:
        _write(ax, x, HEAD - 24 if x == past - 34 else HEAD - 8, text, colour=style.FAINT)
    _write(ax, past + 2, HEAD - 8, f"0 … {start - 1}", colour=style.FAINT)
    visible = tree.ancestors()
    for row in range(count):
        y = HEAD + (row + 0.5) * CELL
        bold = row in kept
        _write(ax, EDGE, y, style.literal(names[row], 16), bold=bold)
        _write(ax, past - 26, y, str(start + int(tree.depths[row])), bold=bold)
        _write(ax, first + (row + 0.1) * CELL, HEAD - 8, str(row), colour=style.FAINT)
        _write(ax, end + 6, y, f"→ {start + kept.index(row)}" if bold else "cut off", bold=bold)
        ax.add_patch(_square(past, y, PAST_CELLS, "past"))
        for column in range(count):
            kind = "hidden" if not visible[row, column] else "kept" if bold else "visible"
            ax.add_patch(_square(first + column * CELL, y, 1, kind))


def _square(x: float, y: float, cells: float, kind: str) -> Rectangle:
    """Committed tokens are hatched, visible ones filled, hidden ones empty."""
    faces = {
        "past": style.PAPER,
        "hidden": style.PAPER,
        "visible": style.OKABE_ITO["sky"],
        "kept": style.OKABE_ITO["blue"],
    }
    lines = {"past": style.FAINT, "hidden": "#CCCCCC"}
    return Rectangle(
        (x + 1.5, y - CELL / 2 + 1.5),
        cells * CELL - 3,
        CELL - 3,
        facecolor=faces[kind],
        edgecolor=lines.get(kind, style.INK),
        linewidth=1.6 if kind == "kept" else 0.7,
        hatch="////" if kind == "past" else None,
    )


def _write(
    ax: Axes, x: float, y: float, text: str, bold: bool = False, size: float = style.TEXT_SIZE, colour: str = style.INK
) -> None:
    ax.text(x, y, text, fontproperties=style.font(size, bold), color=colour, va="center", parse_math=False)


# --- Gaps and their rounding ---------------------------------------------------------------------------------


def rounding_picture(readings: Mapping[str, Rounding], splits: Mapping[str, int | None]) -> Figure:
    """A panel for each precision: the gap between the two best logits of each place, and how rounding moves it.

    `splits` has the place where two decoded texts part, or None. Zeros are drawn on the lowest line.
    """
    fig = Figure(figsize=(11.0, 3.1 * len(readings)), dpi=100, layout="constrained")
    FigureCanvasAgg(fig)
    with style.context():
        axes = fig.subplots(len(readings), 1, squeeze=False, sharex=True)[:, 0]
        for ax, (name, reading) in zip(axes, readings.items(), strict=True):
            _rounding(ax, name, reading, splits.get(name))
        axes[-1].set_xlabel("token of the text", fontproperties=style.font())
    return fig


def _rounding(ax: Axes, name: str, reading: Rounding, split: int | None) -> None:
    places = np.arange(len(reading.gap))
    numbers = np.concatenate([reading.gap, reading.change])
    floor = FLOOR * float(numbers[numbers > 0].min(initial=1.0))
    gap, change = np.maximum(reading.gap, floor), np.maximum(reading.change, floor)
    ink = style.OKABE_ITO
    ax.vlines(places, change, gap, color="#CCCCCC", linewidth=0.8, zorder=1)
    ax.plot(places, gap, "o", color=style.PAPER, markeredgecolor=ink["blue"], label="gap: best less second best")
    ax.plot(places, change, "_", color=ink["vermillion"], markeredgewidth=2, label="rounding: change of that gap")
    flips = places[reading.flipped]
    if len(flips):
        ax.plot(flips, gap[flips], "X", color=ink["orange"], markeredgecolor=style.INK, markersize=10, label="flipped")
    if split is not None:
        ax.axvline(split, color=style.INK, linestyle="--", label="the decoded texts part here")
    ax.set_yscale("log")
    ax.axhline(floor, color=style.FAINT, linestyle=":", linewidth=0.8)
    ax.annotate("0", (1.005, floor), xycoords=("axes fraction", "data"), fontproperties=style.font(), va="center")
    ax.set_title(name, fontproperties=style.font(style.TITLE_SIZE, bold=True), loc="left")
    ax.set_ylabel("logits", fontproperties=style.font())
    ax.tick_params(labelsize=style.TEXT_SIZE)
    ax.legend(prop=style.font(), loc="upper left", bbox_to_anchor=(1.02, 1.0), frameon=False)
