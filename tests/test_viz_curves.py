"""Curves: what was given is what is drawn, and lines differ in more than colour."""

from pathlib import Path

import matplotlib
import pytest

from dominotree_lite.errors import InputError
from dominotree_lite.viz.curves import LOOKS, Line, Panel, curves, summary
from dominotree_lite.viz.style import save

PANELS = [
    Panel("Loss", "step", "nats", [Line("a", [0, 1, 2], [3.0, 2.0, 1.0]), Line("b", [0, 2], [5.0, 4.0])]),
    Panel("tau", "step", "tokens a round", [Line("b", [0, 2], [1.0, 2.5])]),
]


def test_each_line_is_drawn_where_it_was_measured() -> None:
    figure = curves(PANELS)
    for axes, panel in zip(figure.axes, PANELS, strict=True):
        assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == (panel.title, panel.x_label, panel.y_label)
        drawn = {line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()}
        given = {line.label: [list(p) for p in zip(line.x, line.y, strict=True)] for line in panel.lines}
        assert drawn == given
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]


@pytest.mark.parametrize("long", [0, 30])
def test_no_label_of_the_legend_is_cut_off(long: int) -> None:
    """Short labels stand side by side, long ones below each other where the picture is narrow."""
    figure = curves([Panel("", "", "", [Line(name * (long + 1), [0, 1], [0, 1]) for name in "abcde"])])
    figure.canvas.draw()
    (legend,) = figure.legends
    extent = legend.get_window_extent()
    assert extent.x0 >= 0 and extent.x1 <= figure.bbox.width
    assert len({round(text.get_window_extent().x0) for text in legend.get_texts()}) == (1 if long else 2)


def test_bars_reach_from_low_to_high_in_the_colour_of_their_line() -> None:
    barred = Line("a", [0.1, 0.6], [0.2, 0.5], low=[0.1, 0.4], high=[0.3, 0.9])
    (axes,) = curves([Panel("", "", "", [barred, Line("b", [0.0, 1.0], [0.0, 1.0])])]).axes
    (bars,) = axes.collections
    assert [segment.tolist() for segment in bars.get_segments()] == [[[0.1, 0.1], [0.1, 0.3]], [[0.6, 0.4], [0.6, 0.9]]]
    line = axes.get_lines()[0]
    assert matplotlib.colors.to_hex(bars.get_color()[0]) == matplotlib.colors.to_hex(line.get_color())


@pytest.mark.parametrize(("x", "whole"), [([0, 1], True), ([0.0, 0.25, 1.0], False)])
def test_ticks_between_whole_numbers_only_where_values_lie_between(x: list[float], whole: bool) -> None:
    (axes,) = curves([Panel("", "", "", [Line("a", x, x)])]).axes
    assert all(float(tick).is_integer() for tick in axes.get_xticks()) == whole


def test_lines_are_told_apart_without_colour_and_keep_their_look() -> None:
    lines = [Line(str(i), [0, 1], [i, i]) for i in range(len(LOOKS))]
    drawn = curves([Panel("", "", "", lines), Panel("", "", "", lines[::-1])]).axes
    looks = [{x.get_label(): (x.get_marker(), x.get_color()) for x in axes.get_lines()} for axes in drawn]
    assert looks[0] == looks[1]
    assert len({marker for marker, _ in looks[0].values()}) == len(LOOKS)
    assert len({str(look[1]) for look in LOOKS}) == len(LOOKS)


@pytest.mark.parametrize("panels", [1, 2, 3])
def test_the_legend_is_not_cut_off(panels: int) -> None:
    names = ("teacher-forced", "product of forced", "accepted", "rollout")
    figure = curves([Panel("", "", "", [Line(name, [0, 1], [0, 1]) for name in names])] * panels)
    figure.canvas.draw()
    box = figure.legends[0].get_window_extent()
    assert 0 <= box.x0 and box.x1 <= figure.bbox.width and 0 <= box.y0


def test_the_same_numbers_give_the_same_bytes(tmp_path: Path) -> None:
    for ending in ("svg", "png"):
        for name in ("one", "two"):
            save(curves(PANELS), tmp_path / f"{name}.{ending}")
        assert (tmp_path / f"one.{ending}").read_bytes() == (tmp_path / f"two.{ending}").read_bytes()


def test_words_say_where_lines_begin_and_end() -> None:
    assert summary(PANELS[1:]) == "tau (tokens a round over step): b from 1.00 to 2.50."


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(InputError, match="no line"):
        curves([])
    many = [Line(str(i), [0], [0]) for i in range(len(LOOKS) + 1)]
    with pytest.raises(InputError, match="told apart"):
        curves([Panel("", "", "", many)])
