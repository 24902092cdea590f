"""Draft trees as pictures: one, or several of the same round next to each other. It knows no model.

A picture reads from left to right: a column is a depth, a box is a node with the text of its token. What the
target accepted is filled and thick, what it rejected hollow and thin; its own token, the bonus, has square
corners.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import networkx as nx
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.text import Text

from ..errors import InputError
from ..tree import DraftTree
from . import style
from .style import ProbabilityScale

Decode = Callable[[int], str]
PROBABILITY = "p of the path, by the drafter"
ROOT, BONUS = 0, -1  # names of nodes in a graph; all others have their index in the tree

# Points. A picture that draws its own axes has one unit to the point.
ROW, GAP, PAD = 19.0, 17.0, 3.5  # between rows, between columns, between a label and its box
HEAD, FOOT, EDGE = 66.0, 46.0, 10.0  # above each tree, below them all, at the borders
WIDEST, NARROWEST = 1050.0, 600.0  # wider than this, trees stand one below the other


def to_networkx(tree: DraftTree, decode: Decode) -> nx.DiGraph:
    """The tree as a graph from the root down; nodes are numbered as in the tree, children come best first.

    A node has `token`, `text`, `depth`, `log_prob` and `probability` (of its whole path); an edge has the
    `probability` of the child once its parent's path is right.
    """
    graph = nx.DiGraph()
    for node, token in enumerate(tree.tokens.tolist()):
        score = float(tree.log_probs[node])
        graph.add_node(
            node,
            token=token,
            text=decode(token),
            depth=int(tree.depths[node]),
            log_prob=score,
            probability=math.exp(score),
        )
        if node:
            parent = int(tree.parents[node])
            graph.add_edge(parent, node, probability=math.exp(score - float(tree.log_probs[parent])))
    return graph


def layout(graph: nx.DiGraph) -> dict[int, float]:
    """The row of each node, 0 at the top: leaves one row apart, a parent in the middle of its children."""
    order = list(nx.dfs_preorder_nodes(graph, ROOT))
    rows: dict[int, float] = {}
    for node in order:
        if not graph.out_degree(node):
            rows[node] = float(len(rows))
    for node in reversed(order):
        children = list(graph.successors(node))
        if children:
            rows[node] = (rows[children[0]] + rows[children[-1]]) / 2
    return rows


def draw_tree(
    tree: DraftTree,
    decode: Decode,
    accepted: Sequence[int] = (),
    bonus: int | None = None,
    ax: Axes | None = None,
    title: str = "",
) -> Axes:
    """The tree in `ax`; without one, in a figure of its own that is as large as it must be, with a key.

    Args:
        decode: text of one token.
        accepted: nodes of the path that the target accepted, root left out.
        bonus: the target's own token after that path.
        ax: emptied of its axis lines; where it is too small, labels overlap.

    Returns the axes. Raises InputError if `accepted` is not a path from the root.
    """
    panel = _Panel(tree, decode, tuple(accepted), bonus, title)
    if ax is None:
        return _compose([panel]).axes[0]
    with style.context():
        panel.draw(ax, ProbabilityScale.of(tree.log_probs.tolist()))
    return ax


def compare_trees(
    trees: Sequence[DraftTree],
    titles: Sequence[str],
    accepted: Sequence[Sequence[int]],
    decode: Decode,
    bonuses: Sequence[int | None] | None = None,
) -> Figure:
    """The trees in one figure with one key: side by side, or one below the other where that would be too wide.

    Titles, accepted paths and bonus tokens belong to the trees one by one. Raises InputError if their numbers
    differ, if there is no tree, and if an accepted path is none.
    """
    bonuses = [None] * len(trees) if bonuses is None else bonuses
    if not len(trees) == len(titles) == len(accepted) == len(bonuses):
        raise InputError(
            f"{len(trees)} trees, {len(titles)} titles, {len(accepted)} accepted paths, {len(bonuses)} bonus "
            "tokens: give one of each for each tree"
        )
    if not trees:
        raise InputError("there is no tree to draw")
    rows = zip(trees, titles, accepted, bonuses, strict=True)
    return _compose([_Panel(tree, decode, tuple(path), bonus, title) for tree, title, path, bonus in rows])


def describe(tree: DraftTree, decode: Decode, accepted: Sequence[int], bonus: int | None = None) -> str:
    """What a picture of the tree shows, in a sentence: for its alt text."""
    path = "".join(decode(int(tree.tokens[node])) for node in accepted)
    found = f"the target accepted {len(accepted)}, {path!r}" if accepted else "the target accepted none"
    own = "" if bonus is None else f", and added {decode(bonus)!r}"
    return f"{_count(len(tree))}, {int(tree.depths.max())} deep, after {decode(tree.anchor)!r}: {found}{own}."


def _count(nodes: int) -> str:
    return f"{nodes} node" if nodes == 1 else f"{nodes} nodes"


# --- One tree ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Look:
    """How a kind of node differs from the others; no two look alike without colour."""

    corners: str
    line: float  # width in points, of the box
    edge: float  # of the way to it
    bold: bool = True
    dashes: str = "-"


_LOOKS = {
    "anchor": _Look("square", 1.8, 0.0),
    "accepted": _Look("round", 1.8, 2.6),
    "rejected": _Look("round", 1.0, 1.0, bold=False),
    "bonus": _Look("square", 1.8, 1.8, dashes="--"),
}


@dataclass(frozen=True)
class _Panel:
    """One tree with the words around it, laid out: x and y in points from its upper left corner."""

    tree: DraftTree
    decode: Decode
    accepted: tuple[int, ...]
    bonus: int | None
    title: str
    graph: nx.DiGraph = field(init=False)

    def __post_init__(self) -> None:
        inside = all(0 < node <= len(self.tree) for node in self.accepted)
        if not inside or (self.accepted and list(self.accepted) != self.tree.path(self.accepted[-1])):
            raise InputError(f"accepted nodes {list(self.accepted)} are not a path from the root of this tree")
        graph = to_networkx(self.tree, self.decode)
        if self.bonus is not None:
            last = self.accepted[-1] if self.accepted else ROOT
            depth = graph.nodes[last]["depth"] + 1
            graph.add_node(BONUS, token=self.bonus, text=self.decode(self.bonus), depth=depth)
            graph.add_edge(last, BONUS)
        object.__setattr__(self, "graph", graph)

    def kind(self, node: int) -> str:
        if node in (ROOT, BONUS):
            return "anchor" if node == ROOT else "bonus"
        return "accepted" if node in self.accepted else "rejected"

    def label(self, node: int) -> str:
        """The token's text made visible; its number if it has none."""
        own = self.graph.nodes[node]
        return style.literal(own["text"]) if own["text"] else f"#{own['token']}"

    def width(self, node: int) -> float:
        """Of a node's box."""
        return style.text_width(self.label(node), bold=_LOOKS[self.kind(node)].bold) + 2 * PAD

    @cached_property
    def rows(self) -> dict[int, float]:
        """Height of each node below the uppermost one, in rows."""
        return layout(self.graph)

    @cached_property
    def heads(self) -> list[tuple[str, str]]:
        """Above each column: the depth, and the probability of the accepted path down to it."""
        nodes = self.graph.nodes
        below = {nodes[n]["depth"]: nodes[n]["probability"] for n in self.accepted}
        deepest = max(depth for _, depth in nodes(data="depth"))
        rest = [(f"{d}", f"{below[d]:.2g}" if d in below else "") for d in range(1, deepest + 1)]
        return [("depth 0", "p = 1" if below else ""), *rest]

    @cached_property
    def columns(self) -> list[float]:
        """Left edge of each depth's column, and of the one that would come next."""
        widths = [max(map(style.text_width, head)) for head in self.heads]
        for node, depth in self.graph.nodes(data="depth"):
            widths[depth] = max(widths[depth], self.width(node))
        edges = [EDGE]
        for width in widths:
            edges.append(edges[-1] + width + GAP)
        return edges

    @property
    def subtitle(self) -> str:
        verified = bool(self.accepted) or self.bonus is not None
        found = f", target accepts {len(self.accepted)}" if verified else ""
        return f"{_count(len(self.tree))}; drafter expects {self.tree.expected_accepted():.1f} accepted{found}"

    @property
    def size(self) -> tuple[float, float]:
        """Width and height that it needs."""
        words = max(style.text_width(self.title, style.TITLE_SIZE, bold=True), style.text_width(self.subtitle))
        return max(self.columns[-1] - GAP, EDGE + words) + EDGE, HEAD + (max(self.rows.values()) + 1.5) * ROW

    def place(self, node: int) -> tuple[float, float]:
        """The middle of the left side of a node's box."""
        return self.columns[self.graph.nodes[node]["depth"]], HEAD + ROW / 2 + self.rows[node] * ROW

    # --- ink ---

    def draw(self, ax: Axes, scale: ProbabilityScale) -> None:
        width, height = self.size
        ax.set(xlim=(0, width), ylim=(height, 0))
        ax.set_axis_off()
        _write(ax, EDGE, 10, self.title, size=style.TITLE_SIZE, bold=True)
        _write(ax, EDGE, 25, self.subtitle, colour=style.FAINT)
        for x, lines in zip(self.columns, self.heads, strict=False):
            for line, y in zip(lines, (HEAD - 22, HEAD - 10), strict=True):
                _write(ax, x + PAD, y, line, colour=style.FAINT)
        for parent, child in self.graph.edges:
            self._edge(ax, parent, child, scale)
        for node in self.graph.nodes:
            _box(ax, *self.place(node), self.label(node), self.kind(node), scale, self._score(node))

    def _score(self, node: int) -> float:
        return float(self.graph.nodes[node].get("log_prob", 0.0))

    def _edge(self, ax: Axes, parent: int, child: int, scale: ProbabilityScale) -> None:
        """A curve that leaves and arrives level."""
        look = _LOOKS[self.kind(child)]
        (x, y), (x_end, y_end) = self.place(parent), self.place(child)
        x = x + self.width(parent)
        # The whole way is within the gap behind the parent's column, so that no curve runs behind a box.
        bend = self.columns[self.graph.nodes[child]["depth"]] - GAP
        middle = bend + GAP / 2
        points = [(x, y), (bend, y), (middle, y), (middle, y_end), (x_end, y_end)]
        codes = [Path.MOVETO, Path.LINETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]
        colour = scale.colour(self._score(child)) if self.kind(child) == "rejected" else style.INK
        ax.add_patch(
            PathPatch(
                Path(points, codes),
                fill=False,
                edgecolor=colour,
                linewidth=look.edge,
                linestyle=look.dashes,
                zorder=2 if look.bold else 1,
                capstyle="butt",
            )
        )


def _write(
    ax: Axes, x: float, y: float, text: str, size: float = style.TEXT_SIZE, bold: bool = False, colour: str = style.INK
) -> Text:
    """One line of text, its left middle at a point; nothing in it is taken for mathematics."""
    return ax.text(
        x,
        y,
        text,
        fontproperties=style.font(size, bold),
        color=colour,
        va="center",
        parse_math=False,
        zorder=3,
    )


def _box(ax: Axes, x: float, y: float, label: str, kind: str, scale: ProbabilityScale, log_prob: float) -> None:
    look = _LOOKS[kind]
    text = _write(ax, x + PAD, y, label, bold=look.bold)
    colours = {
        "anchor": (style.INK, style.INK, style.PAPER),
        "accepted": (scale.colour(log_prob), style.INK, scale.ink(log_prob)),
        "rejected": (style.PAPER, scale.colour(log_prob), style.INK),
        "bonus": (style.OKABE_ITO["orange"], style.INK, style.INK),
    }
    face, line, ink = colours[kind]
    text.set_color(ink)
    text.set_bbox(
        {
            "boxstyle": f"{look.corners},pad={PAD / style.TEXT_SIZE}",
            "facecolor": face,
            "edgecolor": line,
            "linewidth": look.line,
        }
    )


# --- The whole figure ----------------------------------------------------------------------------------------


def _compose(panels: Sequence[_Panel]) -> Figure:
    """Side by side or one below the other, and a key below them all."""
    scale = ProbabilityScale.of([score for panel in panels for score in panel.tree.log_probs.tolist()])
    wide = sum(panel.size[0] for panel in panels)
    abreast = wide <= WIDEST
    width = max(wide if abreast else max(panel.size[0] for panel in panels), NARROWEST)
    heights = [panel.size[1] for panel in panels]
    height = (max(heights) if abreast else sum(heights)) + FOOT
    with style.context():
        fig = Figure(figsize=(width / 72, height / 72), dpi=100)
        FigureCanvasAgg(fig)
        x = y = 0.0
        for panel in panels:
            panel.draw(_axes(fig, x, y, *panel.size), scale)
            x, y = (x + panel.size[0], y) if abreast else (x, y + panel.size[1])
        _key(fig, scale)
    return fig


def _axes(fig: Figure, x: float, y: float, width: float, height: float) -> Axes:
    """Axes at a place given in points from the figure's upper left corner."""
    full_width, full_height = fig.get_size_inches() * 72
    return fig.add_axes((x / full_width, 1 - (y + height) / full_height, width / full_width, height / full_height))


def _key(fig: Figure, scale: ProbabilityScale) -> None:
    """At the foot: a box of each kind that says what it is, and the colours of the probabilities."""
    full_width, full_height = fig.get_size_inches() * 72
    words = _axes(fig, 0, full_height - FOOT, full_width, FOOT)
    words.set(xlim=(0, full_width), ylim=(FOOT, 0))
    words.set_axis_off()
    x = EDGE
    for kind, look in _LOOKS.items():
        _box(words, x, FOOT / 2, kind, kind, scale, -math.log(10) * scale.decades / 2)
        x += style.text_width(kind, bold=look.bold) + 2 * PAD + GAP
    words_end = x + style.text_width(PROBABILITY) + GAP / 2
    _write(words, x, FOOT / 2, PROBABILITY)
    bar = _axes(fig, words_end, full_height - FOOT / 2 - 5, full_width - words_end - 2 * EDGE, 10)
    drawn = fig.colorbar(ScalarMappable(cmap=scale.colours), cax=bar, orientation="horizontal")
    drawn.outline.set_linewidth(0.5)
    decades = range(-scale.decades, 1)
    drawn.set_ticks([1 + d / scale.decades for d in decades], labels=[f"{10.0**d:g}" for d in decades])
    for label in bar.get_xticklabels():
        label.set_fontproperties(style.font())
