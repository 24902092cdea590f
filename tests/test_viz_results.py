"""Pictures of results against the numbers they were given."""

import numpy as np
import pytest
from matplotlib.text import Text
from numpy.testing import assert_allclose

from dominotree_lite import viz
from dominotree_lite.calibration import Nodes
from dominotree_lite.errors import InputError

TIMES = {
    "ar": {"draft": 0.0, "build": 0.0, "verify": 20.0, "commit": 0.5},
    "dominotree": {"draft": 5.0, "build": 8.0, "verify": 30.0, "commit": 1.0},
}


def nodes(predicted: list[float], hit: list[bool]) -> Nodes:
    return Nodes(np.array(predicted), np.ones(len(hit), int), np.array(hit))


def test_every_name_is_there_and_no_other() -> None:
    assert all(callable(getattr(viz, name)) for name in viz.__all__)
    assert set(viz.__all__) <= set(dir(viz))
    with pytest.raises(AttributeError, match="no attribute 'draw_forest'"):
        viz.draw_forest  # noqa: B018


def test_bars_stand_behind_each_other_and_their_sum_is_written() -> None:
    (ax,) = viz.stage_bars(TIMES).axes
    for stage, bars in zip(("draft", "build", "verify", "commit"), ax.containers, strict=True):
        assert bars.get_label() == stage
        assert_allclose([bar.get_width() for bar in bars], [times[stage] for times in TIMES.values()])
    ends = [bar.get_x() + bar.get_width() for bar in ax.containers[-1]]
    assert_allclose(ends, [sum(times.values()) for times in TIMES.values()])
    assert [t.get_text().strip() for t in ax.texts] == ["20.5", "44.0"]
    looks = {(bars[0].get_facecolor(), bars[0].get_hatch()) for bars in ax.containers}
    assert len(looks) == 4


def test_reliability_is_what_calibration_says() -> None:
    given = nodes([0.9, 0.9, 0.1, 0.1, 0.1], [True, False, False, False, True])
    (ax,) = viz.reliability({"path": given, "marginal": given}, bins=2).axes
    path, _, ideal = ax.get_lines()
    assert_allclose(path.get_xdata(), [0.1, 0.9])
    assert_allclose(path.get_ydata(), [1 / 3, 1 / 2])
    assert_allclose(ideal.get_xydata(), [[0, 0], [1, 1]])
    assert len(ax.collections) == 2  # bars of both groups


@pytest.mark.parametrize("count", [1, 12])
def test_no_text_is_small_or_outside(count: int) -> None:
    rows = {f"method {n}": TIMES["dominotree"] for n in range(count)}
    for figure in (viz.stage_bars(rows), viz.reliability({"path": nodes([0.5, 0.2], [True, False])})):
        figure.canvas.draw()
        texts = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
        assert texts and min(t.get_fontsize() for t in texts) >= 9
        drawn, size = figure.get_tightbbox(), figure.get_size_inches()
        assert drawn.x0 >= 0 and drawn.y0 >= 0 and drawn.x1 <= size[0] and drawn.y1 <= size[1]


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(InputError, match="no method"):
        viz.stage_bars({})
    with pytest.raises(InputError, match="ar: the stages are draft, build, verify, commit, not draft"):
        viz.stage_bars({"ar": {"draft": 1.0}})
    with pytest.raises(InputError, match="0 milliseconds or more"):
        viz.stage_bars({"ar": TIMES["ar"] | {"draft": float("nan")}})
    with pytest.raises(InputError, match="no nodes"):
        viz.reliability({})
