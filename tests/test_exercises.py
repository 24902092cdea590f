"""The exercises' tests: a stub is to do, a right answer passes, a wrong one is shown and never raises."""

from typing import Any

import pytest

from dominotree_lite.exercises import judge


@pytest.mark.parametrize(
    ("found", "wanted", "line"),
    [
        (None, 3, "1: to do"),
        (3, 3, "1: passed"),
        (0.1 + 0.2, 0.3, "1: passed"),
        ([1, (2, 3.0)], (1, [2, 3]), "1: passed"),
        (4, 3, "1: got 4, wanted 3"),
        ([1], [1, 2], "1: got [1], wanted [1, 2]"),
        (7, [1], "1: got 7, wanted [1]"),
        ("a", 0.5, "1: got 'a', wanted 0.5"),
        (0, None, "1: got 0, wanted None"),
    ],
)
def test_an_answer_gets_its_line(found: Any, wanted: Any, line: str) -> None:
    assert judge("1", found, wanted) == line
