"""Pictures against what they must show: the tree's own arrays, geometry measured on the canvas, bytes on disk."""

import base64
import io
import math
import os
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib._pylab_helpers import Gcf
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.text import Text
from PIL import Image

from dominotree_lite.errors import InputError
from dominotree_lite.tree import DraftTree
from dominotree_lite.viz import style
from dominotree_lite.viz.trees import compare_trees, describe, draw_tree, layout, to_networkx

WORDS = dict(enumerate([" sky", " is", " blue", " because", ",", "\n", " of", " light"]))
# root 0 " sky"; 1 " is" and 2 " blue" below it; 3 " because", 4 "," below 1; 5 "\n" below 3
TREE = DraftTree.from_lists(
    [0, 1, 2, 3, 4, 5], [-1, 0, 0, 1, 1, 3], [0, 1, 1, 2, 2, 3], [math.log(p) for p in (1, 0.5, 0.3, 0.25, 0.2, 0.1)]
)
ACCEPTED = [1, 3]


def word(token: int) -> str:
    return WORDS[token % len(WORDS)]


def random_tree(size: int, seed: int) -> DraftTree:
    """`size` nodes below the root, each below a random earlier one, with falling scores."""
    random = np.random.default_rng(seed)
    parents, depths, scores = [-1], [0], [0.0]
    for node in range(1, size + 1):
        parent = int(random.integers(max(0, node - 12), node))
        parents.append(parent)
        depths.append(depths[parent] + 1)
        scores.append(scores[parent] - float(random.exponential(0.5)))
    return DraftTree.from_lists(list(range(size + 1)), parents, depths, scores)


def boxes(ax: Axes) -> list[Text]:
    """The labels with a box around them: the nodes, in the order of the graph."""
    return [text for text in ax.texts if text.get_bbox_patch() is not None]


def edges(ax: Axes) -> list[PathPatch]:
    return [patch for patch in ax.patches if isinstance(patch, PathPatch)]


def rendered(fig: Figure) -> Figure:
    fig.canvas.draw()
    return fig


# --- the graph and where its nodes go -------------------------------------------------------------------


def test_graph_has_the_trees_nodes_and_probabilities() -> None:
    graph = to_networkx(TREE, word)
    assert sorted(graph.edges) == [(0, 1), (0, 2), (1, 3), (1, 4), (3, 5)]
    assert [graph.nodes[n]["text"] for n in range(6)] == [" sky", " is", " blue", " because", ",", "\n"]
    assert [graph.nodes[n]["depth"] for n in range(6)] == [0, 1, 1, 2, 2, 3]
    assert [graph.nodes[n]["probability"] for n in range(6)] == pytest.approx([1, 0.5, 0.3, 0.25, 0.2, 0.1])
    assert graph.edges[1, 3]["probability"] == pytest.approx(0.25 / 0.5)
    assert graph.edges[3, 5]["probability"] == pytest.approx(0.1 / 0.25)


@given(size=st.integers(0, 60), seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=50)
def test_layout_spreads_leaves_and_crosses_nothing(size: int, seed: int) -> None:
    tree = random_tree(size, seed)
    rows = layout(to_networkx(tree, word))
    leaves = [n for n in range(size + 1) if not tree.children(n)]
    assert sorted(rows[n] for n in leaves) == list(range(len(leaves)))
    below = {n: [m for m in range(size + 1) if n in [0, *tree.path(m)]] for n in range(size + 1)}
    for node in range(size + 1):
        children = tree.children(node)
        if children:
            assert rows[node] == (rows[children[0]] + rows[children[-1]]) / 2
        for upper, lower in zip(children, children[1:], strict=False):  # a whole subtree above the next
            assert max(rows[m] for m in below[upper]) < min(rows[m] for m in below[lower])


# --- one tree -------------------------------------------------------------------------------------------


def test_every_node_is_drawn_once_with_its_text() -> None:
    ax = draw_tree(TREE, word, ACCEPTED, bonus=7)
    assert [text.get_text() for text in boxes(ax)] == [
        "␣sky",
        "␣is",
        "␣blue",
        "␣because",
        ",",
        "↵",
        "␣light",
    ]
    assert len(edges(ax)) == 6
    assert len(boxes(draw_tree(TREE, word))) == 6


def test_kinds_differ_without_colour() -> None:
    ax = draw_tree(TREE, word, ACCEPTED, bonus=7)
    found = {}
    for kind, node in {"anchor": 0, "accepted": 1, "rejected": 2, "bonus": 6}.items():
        patch = boxes(ax)[node].get_bbox_patch()
        assert patch is not None
        hollow = patch.get_facecolor()[:3] == (1.0, 1.0, 1.0)
        found[kind] = type(patch.get_boxstyle()).__name__, patch.get_linewidth(), hollow
    assert found["accepted"][1] > found["rejected"][1]
    assert [found[kind][2] for kind in ("accepted", "rejected", "bonus")] == [False, True, False]
    assert found["bonus"][0] == found["anchor"][0] == "Square" != found["accepted"][0]
    width = {(a, b): e.get_linewidth() for (a, b), e in zip(to_networkx(TREE, word).edges, edges(ax), strict=False)}
    assert width[0, 1] == width[1, 3] > max(width[0, 2], width[1, 4], width[3, 5])
    dashed = [edge.get_linestyle() not in ("-", "solid") for edge in edges(ax)]
    assert dashed == [False] * 5 + [True]  # only the way to the bonus


def test_numbers_above_the_columns_are_the_accepted_paths() -> None:
    words = [text.get_text() for text in draw_tree(TREE, word, ACCEPTED, bonus=7, title="A title").texts]
    assert words[:2] == ["A title", "5 nodes; drafter expects 1.4 accepted, target accepts 2"]
    assert words[2:10] == ["depth 0", "p = 1", "1", "0.5", "2", "0.25", "3", ""]


def test_the_bonus_hangs_below_the_last_accepted_node() -> None:
    for accepted, parent in (([], 0), ([1, 3], 3)):
        ax = draw_tree(TREE, word, accepted, bonus=7)
        renderer = rendered(ax.get_figure()).canvas.get_renderer()
        last, own = (boxes(ax)[n].get_bbox_patch().get_window_extent(renderer) for n in (parent, -1))
        (way,) = (edge for edge in edges(ax) if edge.get_linestyle() not in ("-", "solid"))
        (x, y), (x_end, y_end) = ax.transData.transform(way.get_path().vertices[[0, -1]])
        # 5 pixels of 1/100 inch: a box's line is thick, and hinting makes letters a little wider.
        assert x == pytest.approx(last.x1, abs=5) and last.y0 < y < last.y1
        assert x_end == pytest.approx(own.x0, abs=5) and own.y0 < y_end < own.y1


@pytest.mark.parametrize("accepted", [[3], [1, 2], [3, 1], [1, 1], [6], [0, 1], [-1]])
def test_an_accepted_path_that_is_none_is_refused(accepted: list[int]) -> None:
    with pytest.raises(InputError, match="not a path"):
        draw_tree(TREE, word, accepted)


@pytest.mark.parametrize("size", [0, 1, 8, 64])
def test_nothing_overlaps_and_all_is_inside(size: int) -> None:
    tree = random_tree(size, seed=size)
    deepest = int(tree.depths.argmax())
    fig = rendered(draw_tree(tree, word, tree.path(deepest), bonus=7, title="title").get_figure())
    renderer = fig.canvas.get_renderer()
    extents = [text.get_bbox_patch().get_window_extent(renderer) for ax in fig.axes for text in boxes(ax)]
    assert len(extents) == size + 2 + 4  # root, bonus, and the key's four
    for i, one in enumerate(extents):
        assert fig.bbox.x0 <= one.x0 and one.x1 <= fig.bbox.x1 and fig.bbox.y0 <= one.y0 and one.y1 <= fig.bbox.y1
        assert not any(one.overlaps(other) for other in extents[:i])
    plain = [text for ax in fig.axes for text in ax.texts if text not in boxes(ax) and text.get_text()]
    bare = [text.get_window_extent(renderer) for text in plain]
    assert all(one.x1 <= fig.bbox.x1 for one in bare)
    assert not any(one.overlaps(other) for one in bare for other in extents)


def test_no_text_is_small() -> None:
    fig = rendered(compare_trees([TREE, TREE], ["a", "b"], [ACCEPTED, []], word, [7, 2]))
    texts = [t for t in fig.findobj(Text) if t.get_visible() and t.get_text()]
    assert len(texts) > 20
    assert min(text.get_fontsize() for text in texts) >= 9


def test_256_nodes(tmp_path: Path) -> None:
    ax = draw_tree(random_tree(256, seed=1), word, title="256")
    assert len(boxes(ax)) == 257
    style.save(ax.get_figure(), tmp_path / "tree.svg")
    assert (tmp_path / "tree.svg").stat().st_size < 1_000_000


@pytest.mark.parametrize("size", [8, 256])
def test_small_and_large_trees_are_read_alike(size: int) -> None:
    ax = draw_tree(random_tree(size, seed=2), word, title="a tree")
    fig = rendered(ax.get_figure())
    texts = [t for t in fig.findobj(Text) if t.get_visible() and t.get_text()]
    assert min(text.get_fontsize() for text in texts) >= 9
    extents = [box.get_bbox_patch().get_window_extent() for box in boxes(ax)]
    assert len(extents) == size + 1
    assert not any(one.overlaps(other) for i, one in enumerate(extents) for other in extents[:i])


def test_a_given_axes_gets_the_tree_and_nothing_else() -> None:
    fig = Figure()
    FigureCanvasAgg(fig)
    ax = fig.subplots()
    assert draw_tree(TREE, word, ACCEPTED, 7, ax=ax) is ax
    assert fig.axes == [ax] and len(boxes(ax)) == 7


# --- several trees --------------------------------------------------------------------------------------


def test_trees_stand_side_by_side_or_below_each_other() -> None:
    fig = compare_trees([TREE, TREE.prefix(2)], ["left", "right"], [ACCEPTED, [1]], word, [7, 2])
    left, right = (ax.get_position() for ax in fig.axes[:2])
    assert left.x1 <= right.x0 + 1e-9 and left.y1 == pytest.approx(right.y1)
    assert Counter(len(boxes(ax)) for ax in fig.axes[:2]) == {7: 1, 4: 1}
    chain = DraftTree.from_lists([3] * 31, list(range(-1, 30)), list(range(31)), [-d / 9 for d in range(31)])
    upper, lower = (ax.get_position() for ax in compare_trees([chain, chain], ["", ""], [[], []], word).axes[:2])
    assert lower.y1 <= upper.y0 + 1e-9 and lower.x0 == upper.x0


def test_one_scale_serves_all_trees() -> None:
    fig = compare_trees([TREE, TREE.prefix(1)], ["", ""], [[], []], word)
    first, second = (boxes(ax)[1].get_bbox_patch() for ax in fig.axes[:2])
    assert first is not None and second is not None
    assert first.get_edgecolor() == second.get_edgecolor()


def test_counts_that_differ_are_refused() -> None:
    with pytest.raises(InputError, match="2 trees, 1 titles"):
        compare_trees([TREE, TREE], ["a"], [[], []], word)
    with pytest.raises(InputError, match="1 bonus"):
        compare_trees([TREE, TREE], ["a", "b"], [[], []], word, [1])
    with pytest.raises(InputError, match="no tree"):
        compare_trees([], [], [], word)


def test_description_names_what_was_accepted() -> None:
    assert describe(TREE, word, ACCEPTED, 7) == (
        "5 nodes, 3 deep, after ' sky': the target accepted 2, ' is because', and added ' light'."
    )
    assert describe(TREE.prefix(1), word, []) == "1 node, 1 deep, after ' sky': the target accepted none."


# --- tokens that make trouble ---------------------------------------------------------------------------

HOSTILE = [  # text, label
    ("$x_1$ $\\frac", "$x_1$␣$\\frac"),
    ("$", "$"),
    ("$$", "$$"),
    ("a\nb\tc", "a↵b⇥c"),
    ("\r\x00\u202e", "<U+000D><U+0000><U+202E>"),
    ("\u00a0", "<U+00A0>"),
    ("שלום", "שלום"),
    ("مرحبا", "مرحبا"),
    ("漢字", "□□"),
    ("🧜🏽", "□□"),
    ("\u0301e\u0301", "◌\u0301e\u0301"),
    (chr(0xD800), "<U+D800>"),
    ("<script>", "<script>"),
    ("&amp;", "&amp;"),
    ("\ufffd", "\ufffd"),
    ("", ""),
    ("12345678901", "12345678901"),
    ("123456789012", "123456789012"),
    ("1234567890123", "12345678901…"),
    ("\\n", "\\n"),
    ("%d{x}^_", "%d{x}^_"),
]


@pytest.mark.parametrize(("text", "label"), HOSTILE)
def test_a_label_shows_every_character(text: str, label: str) -> None:
    assert style.literal(text) == label


def test_hostile_tokens_are_drawn_as_they_are(tmp_path: Path) -> None:
    texts, wanted = (list(column) for column in zip(*HOSTILE, strict=True))
    rest = len(texts) - 1
    tree = DraftTree.from_lists(range(rest + 1), [-1] + [0] * rest, [0] + [1] * rest, [0.0] + [-1.0] * rest)
    ax = draw_tree(tree, texts.__getitem__, [1], bonus=2, title="$\\frac$ <script>")
    labels = [text.get_text() for text in boxes(ax)]
    assert labels == [label or f"#{node}" for node, label in enumerate(wanted)] + [wanted[2]]
    assert not any(text.get_parse_math() for text in ax.texts)
    fig = ax.get_figure()
    style.save(fig, tmp_path / "hostile.svg")  # a missing glyph or bad mathematics would warn or raise here
    style.save(fig, tmp_path / "hostile.png")
    assert "<script" not in (tmp_path / "hostile.svg").read_text(encoding="utf-8")


# --- style ----------------------------------------------------------------------------------------------


def contrast(one: object, other: object) -> float:
    """WCAG 2.2, relative luminance and contrast ratio."""

    def luminance(colour: object) -> float:
        rgb = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
        return 0.2126 * rgb[0] + 0.7152 * rgb[1] + 0.0722 * rgb[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_text_can_be_read_on_every_colour() -> None:
    scale = style.ProbabilityScale(4)
    for log_prob in np.linspace(-12, 0, 200):
        assert contrast(scale.colour(log_prob), scale.ink(log_prob)) >= 4.5
    assert contrast(style.FAINT, style.PAPER) >= 7
    assert contrast(style.OKABE_ITO["orange"], style.INK) >= 4.5


def test_probabilities_darken() -> None:
    scale = style.ProbabilityScale.of([0.0, math.log(0.02)])
    assert scale.decades == 2
    shades = [contrast(scale.colour(math.log(p)), "white") for p in (0.001, 0.01, 0.03, 0.1, 0.3, 1.0)]
    assert shades[0] == shades[1] and shades[1:] == sorted(set(shades))
    extremes = ([], 1), ([0.0], 1), ([math.log(0.1)], 1), ([math.log(0.099)], 2), ([-math.inf], 6)
    assert [style.ProbabilityScale.of(values).decades for values, _ in extremes] == [d for _, d in extremes]


def test_a_users_own_settings_neither_count_nor_change(tmp_path: Path) -> None:
    before = draw_tree(TREE, word, ACCEPTED, 7).get_figure()
    style.save(before, tmp_path / "before.svg")
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "red", "savefig.dpi": 30, "figure.dpi": 50}):
        kept = dict(matplotlib.rcParams)
        style.save(draw_tree(TREE, word, ACCEPTED, 7).get_figure(), tmp_path / "after.svg")
        assert dict(matplotlib.rcParams) == kept
    assert (tmp_path / "before.svg").read_bytes() == (tmp_path / "after.svg").read_bytes()
    assert Gcf.figs == {}


CHILD = """
import sys
from pathlib import Path
from dominotree_lite.tree import DraftTree
from dominotree_lite.viz import style
from dominotree_lite.viz.trees import compare_trees
tree = DraftTree.from_lists([0, 1, 2, 3], [-1, 0, 0, 1], [0, 1, 1, 2], [0.0, -0.5, -1.5, -2.5])
figure = compare_trees([tree, tree.prefix(2)], ["one", "two"], [[1, 3], [1]], " token {}".format, [7, 2])
style.save(figure, Path(sys.argv[1]) / "trees.svg")
style.save(figure, Path(sys.argv[1]) / "trees.png")
"""


def test_the_same_picture_has_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    tree = DraftTree.from_lists([0, 1, 2, 3], [-1, 0, 0, 1], [0, 1, 1, 2], [0.0, -0.5, -1.5, -2.5])
    figure = compare_trees([tree, tree.prefix(2)], ["one", "two"], [[1, 3], [1]], " token {}".format, [7, 2])
    command = [sys.executable, "-c", CHILD, str(tmp_path)]
    subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": "1"}, check=True, timeout=300)
    for name in ("trees.svg", "trees.png"):
        for attempt in ("first", "second"):
            style.save(figure, tmp_path / attempt / name)
            assert (tmp_path / attempt / name).read_bytes() == (tmp_path / name).read_bytes()
    drawing = (tmp_path / "trees.svg").read_text(encoding="utf-8")
    assert "<dc:date>" not in drawing and drawing.count("<text") == 0


def test_save_refuses_what_it_cannot_write(tmp_path: Path) -> None:
    fig = draw_tree(TREE, word).get_figure()
    with pytest.raises(InputError, match=r"ends in \.svg or \.png"):
        style.save(fig, tmp_path / "tree.pdf")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="can't be written"):
        style.save(fig, tmp_path / "file" / "tree.svg")


class Images(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.images: list[dict[str, str | None]] = []
        self.names: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        if tag == "img":
            self.images.append(dict(attrs))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_show_keeps_alt_text_and_picture_in_every_form() -> None:
    alt, caption = 'a "tree" & <script>alert(1)</script>', "<b>caption</b>"
    bundle = style.show(draw_tree(TREE, word).get_figure(), alt, caption)._repr_mimebundle_()
    assert bundle["text/plain"] == alt
    page = Images()
    page.feed(bundle["text/html"])
    assert page.names == ["figure", "img", "figcaption"] and "".join(page.words) == caption
    assert page.images[0]["alt"] == alt
    assert page.images[0]["src"] == "data:image/png;base64," + bundle["image/png"]
    image = Image.open(io.BytesIO(base64.b64decode(bundle["image/png"])))
    image.load()
    assert image.width == pytest.approx(int(page.images[0]["width"] or 0) * style.PNG_DPI / 96, abs=2)
    assert image.convert("RGB").getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize("alt", ["", "  \n"])
def test_show_demands_an_alt_text(alt: str) -> None:
    with pytest.raises(InputError, match="alt text"):
        style.show(Figure(), alt)
