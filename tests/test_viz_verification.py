"""What the pictures of verification show, counted on the canvas and compared with the tree's own arrays."""

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from dominotree_lite.errors import InputError
from dominotree_lite.microscope import Rounding
from dominotree_lite.tree import DraftTree
from dominotree_lite.viz import style
from dominotree_lite.viz.verification import mask, mask_beside_tree, rounding_picture

WORDS = [" sky", " is", " blue", " because", ","]
TREE = DraftTree.from_lists([0, 1, 2, 3, 4], [-1, 0, 0, 1, 2], [0, 1, 1, 2, 2], [0.0, -0.1, -0.5, -0.6, -0.9])


def test_a_filled_square_is_where_a_row_sees_a_column() -> None:
    ax = mask_beside_tree(TREE, 7, WORDS.__getitem__, [2, 4], bonus=1).axes[1]
    squares = [p for p in ax.patches if isinstance(p, Rectangle) and not p.get_hatch()]
    filled = np.array([to_hex(p.get_facecolor()) != style.PAPER.lower() for p in squares]).reshape(5, 5)
    np.testing.assert_array_equal(filled, TREE.ancestors())
    thick = np.array([p.get_linewidth() > 1 for p in squares]).reshape(5, 5)
    np.testing.assert_array_equal(thick, TREE.ancestors() & np.isin(np.arange(5), [0, 2, 4])[:, None])


def test_positions_and_cache_rows_are_written_beside_each_row() -> None:
    ax = mask_beside_tree(TREE, 7, WORDS.__getitem__, [2, 4]).axes[1]
    texts = [t.get_text() for t in ax.texts]
    assert [t for t in texts if t in ("7", "8", "9")] == ["7", "8", "8", "9", "9"]
    assert [t for t in texts if t.startswith("→") or t == "cut off"] == ["→ 7", "cut off", "→ 8", "cut off", "→ 9"]
    assert "0 … 6" in texts


def test_panels_stand_side_by_side_within_the_figure_and_no_text_leaves_it() -> None:
    figure = mask_beside_tree(TREE, 7, WORDS.__getitem__, [2, 4], bonus=1)
    figure.canvas.draw()
    left, right = (ax.get_position() for ax in figure.axes)
    assert left.x0 == 0 and left.x1 == pytest.approx(right.x0) and right.x1 == pytest.approx(1)
    box = figure.bbox
    for text in [t for ax in figure.axes for t in ax.texts]:
        extent = text.get_window_extent()
        assert box.x0 <= extent.x0 and extent.x1 <= box.x1 and box.y0 <= extent.y0 and extent.y1 <= box.y1


def test_a_path_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="not a path"):
        mask_beside_tree(TREE, 7, WORDS.__getitem__, [1, 4])


def chain_with_leaves(count: int) -> DraftTree:
    """Every other node goes on, the one after it is a leaf beside it."""
    parents = [-1, *(max(0, node - 2 + node % 2) for node in range(1, count + 1))]
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    return DraftTree.from_lists(list(range(count + 1)), parents, depths, [-d / 10 for d in depths])


def test_a_small_mask_has_words_and_a_large_one_fits_on_a_page() -> None:
    small = mask(TREE, 7, WORDS.__getitem__, [2, 4])
    texts = [t.get_text() for t in small.axes[0].texts]
    assert [t for t in texts if t.startswith("→") or t == "cut off"] == ["→ 7", "cut off", "→ 8", "cut off", "→ 9"]
    tree = chain_with_leaves(256)
    path = tree.path(6)
    (ax,) = mask(tree, 7, str, path).axes
    (image,) = ax.images
    np.testing.assert_array_equal(image.get_array() > 0, tree.ancestors())
    assert sorted(np.flatnonzero((image.get_array() == 2).any(axis=1))) == [0, *path]
    assert sorted(ax.lines[0].get_ydata()) == [0, *path]
    figure = ax.get_figure()
    figure.canvas.draw()
    assert max(figure.get_size_inches()) < 8
    texts = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
    assert texts and min(t.get_fontsize() for t in texts) >= 9
    drawn, size = figure.get_tightbbox(), figure.get_size_inches()
    assert drawn.x0 >= 0 and drawn.y0 >= 0 and drawn.x1 <= size[0] and drawn.y1 <= size[1]


def test_a_mask_of_no_path_is_refused() -> None:
    for wrong in ([1, 4], [9], [-1]):
        with pytest.raises(InputError, match="not a path"):
            mask(TREE, 7, WORDS.__getitem__, wrong)


def test_gaps_and_changes_are_drawn_where_they_are_and_zeros_below_them_all() -> None:
    reading = Rounding(np.array([2.0, 0.0, 0.5]), np.array([0.25, 0.125, 0.0]), np.array([False, True, False]))
    fresh = Rounding(np.array([1.0, 1.0, 1.0]), np.zeros(3), np.zeros(3, bool))
    figure = rounding_picture({"rough": reading, "fine": fresh}, {"rough": 1, "fine": None})
    rough, fine = figure.axes
    lines = {line.get_label(): line for line in rough.lines}
    gap = lines["gap: best less second best"].get_ydata()
    change = lines["rounding: change of that gap"].get_ydata()
    assert gap[0] == 2.0 and gap[2] == 0.5 and list(change[:2]) == [0.25, 0.125]
    assert gap[1] == change[2] < 0.125
    assert list(lines["flipped"].get_xdata()) == [1]
    assert list(lines["the decoded texts part here"].get_xdata()) == [1, 1]
    assert not {"flipped", "the decoded texts part here"} & {line.get_label() for line in fine.lines}
