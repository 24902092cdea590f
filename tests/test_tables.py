"""Tables: each written form read back."""

import csv
import io

from dominotree_lite.intervals import Interval
from dominotree_lite.tables import Table, comma_separated, latex, markdown, plain, shown

TABLE = Table(
    "speed",
    "50 % of <a|b>",
    ("method", "budget", "speed-up"),
    [["greedy_path", 16, Interval(1.23456, 1.0, 1.5)], ["a|b", None, None], ["ar", 0, Interval(1.0, 1.0, 1.0)]],
)


def test_csv_keeps_every_digit_and_every_bound() -> None:
    head, *rows = csv.reader(io.StringIO(comma_separated(TABLE)))
    assert head == ["method", "budget", "speed-up", "speed-up low", "speed-up high"]
    assert rows[0] == ["greedy_path", "16", "1.23456", "1.0", "1.5"]
    assert rows[1] == ["a|b", "", "", "", ""]
    assert {len(row) for row in rows} == {5}


def test_markdown_has_as_many_cells_in_every_line() -> None:
    title, _, *lines = markdown(TABLE).splitlines()
    assert title == "**50 % of &lt;a\\|b>**"
    assert {line.replace("\\|", "").count("|") for line in lines} == {4}
    assert lines[1] == "| --- | ---: | ---: |"
    assert lines[2] == "| greedy_path | 16 | 1.23 [1.00, 1.50] |"
    assert lines[3] == "| a\\|b | – | – |"


def test_latex_escapes_what_would_act() -> None:
    text = latex(TABLE)
    assert r"greedy\_path & 16 & 1.23 [1.00, 1.50] \\" in text
    assert r"\caption{50 \% of <a|b>}" in text and r"\label{tab:speed}" in text
    assert r"\begin{tabular}{lrr}" in text
    odd = latex(Table("odd", "x", ("a",), [["\\~^&%$#_{}–"]]))
    assert r"\textbackslash{}\textasciitilde{}\textasciicircum{}\&\%\$\#\_\{\}--" in odd


def test_plain_columns_stand_under_each_other() -> None:
    head, *lines = plain(TABLE).splitlines()
    assert head.index("speed-up") + len("speed-up") == len(lines[0]) == len(head)
    assert lines[0].startswith("greedy_path      16")


def test_numbers_are_shown_as_a_reader_needs_them() -> None:
    assert [shown(cell) for cell in (None, 3, 0.0, 12.345, 0.1, 0.012345, -0.0001, "x")] == [
        "–", "3", "0.00", "12.35", "0.10", "0.0123", "-0.0001", "x",
    ]  # fmt: skip
