"""Pictures of a study against the numbers they were given."""

import pytest
from made_records import evaluation
from matplotlib.text import Text
from numpy.testing import assert_allclose

from dominotree_lite.errors import InputError
from dominotree_lite.intervals import Interval
from dominotree_lite.report import Chosen
from dominotree_lite.study import studies, times_faster
from dominotree_lite.viz import bench


def test_a_row_is_a_dot_between_its_bounds() -> None:
    panels = {"one": {"a": Interval(2, 1, 4), "b": None}, "two": {"a": Interval(3, 2, 5), "b": Interval(6, 5, 7)}}
    figure = bench.forest(panels, "x")
    for ax, rows in zip(figure.axes, panels.values(), strict=True):
        *drawn, _ = ax.get_lines()
        known = [(place, one) for place, one in enumerate(rows.values()) if one]
        for (place, one), bar, dot in zip(known, drawn[::2], drawn[1::2], strict=True):
            assert_allclose(bar.get_xydata(), [[one.low, place], [one.high, place]])
            assert_allclose(dot.get_xydata(), [[one.value, place]])
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["a", "b"]


def test_bars_are_shares_of_counts() -> None:
    (one, two) = bench.histograms({"a": [1, 3], "b": [0, 0, 5]}, "depth", first=1).axes
    assert [(bar.get_x() + bar.get_width() / 2, bar.get_height()) for bar in one.patches] == [(1, 0.25), (2, 0.75)]
    assert [bar.get_height() for bar in two.patches] == [0, 0, 1]


def test_lines_over_the_budget_are_the_studys() -> None:
    (study,) = studies(evaluation())
    _, speed = bench.budgets(study, 1.0).axes
    lines = {line.get_label(): line for line in speed.get_lines()}
    base = study.baseline(1.0)
    for variant in ("marginal", "dominotree"):
        found = [times_faster(study, cell, base, study.prompts) for cell in study.of(variant, 1.0)]
        assert_allclose(lines[variant].get_ydata(), [one.value for one in found if one])
        assert_allclose(lines[variant].get_xdata(), [4, 16, 64])


def test_no_text_is_small_or_outside() -> None:
    (study,) = studies(evaluation(temperatures=(0.0,)))
    for figure in bench.pictures(Chosen.on_half(study)).values():
        figure.canvas.draw()
        texts = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
        assert texts and min(t.get_fontsize() for t in texts) >= 9
        drawn, size = figure.get_tightbbox(), figure.get_size_inches()
        assert drawn.x0 >= 0 and drawn.y0 >= 0 and drawn.x1 <= size[0] and drawn.y1 <= size[1]


def test_nothing_to_draw_is_refused() -> None:
    with pytest.raises(InputError, match="no interval"):
        bench.forest({"one": {}}, "x")
    with pytest.raises(InputError, match="no counts"):
        bench.histograms({}, "x")
