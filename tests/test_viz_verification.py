"""What the pictures of verification show, counted on the canvas and compared with the tree's own arrays."""

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from dominotree_lite.errors import InputError
from dominotree_lite.microscope import Rounding
from dominotree_lite.tree import DraftTree
from dominotree_lite.viz import style
from dominotree_lite.viz.verification import mask_beside_tree, rounding_picture

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
