"""A table of numbers and its three written forms: Markdown, LaTeX (booktabs) and CSV. It adds nothing up.

In Markdown and LaTeX a number is rounded and an interval stands in brackets behind it; in CSV nothing is rounded,
and an interval takes three columns.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from .intervals import Interval

Cell = str | int | float | Interval | None
NOTHING = "–"  # where a number does not exist
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    **{c: f"\\{c}" for c in "&%$#_{}"},
}
_MARKDOWN = {"|": r"\|", "\n": " ", "<": "&lt;"}


@dataclass(frozen=True)
class Table:
    """Rows under a header, all of one length; `name` is the stem of its files."""

    name: str
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]


def shown(cell: Cell) -> str:
    """A cell as a reader meets it: two digits after the point, three where a number is small."""
    if cell is None:
        return NOTHING
    if isinstance(cell, float):
        return f"{cell:.2f}" if cell == 0 or abs(cell) >= 0.1 else f"{cell:.3g}"
    return str(cell)


def plain(table: Table) -> str:
    """Columns side by side, for a terminal; no caption."""
    rows = [list(table.header), *([shown(cell) for cell in row] for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = _numeric(table)
    lines = (
        [cell.rjust(w) if number else cell.ljust(w) for cell, w, number in zip(row, widths, right, strict=True)]
        for row in rows
    )
    return "\n".join("  ".join(line).rstrip() for line in lines)


def markdown(table: Table) -> str:
    """A pipe table with its caption in bold above."""
    marks = ["---:" if number else "---" for number in _numeric(table)]
    body = [[_replaced(shown(cell), _MARKDOWN) for cell in row] for row in table.rows]
    head = [_replaced(title, _MARKDOWN) for title in table.header]
    lines = [f"| {' | '.join(row)} |" for row in (head, marks, *body)]
    return f"**{_replaced(table.caption, _MARKDOWN)}**\n\n" + "\n".join(lines) + "\n"


def latex(table: Table) -> str:
    """A table environment for the package booktabs, with caption and label."""
    columns = "".join("r" if number else "l" for number in _numeric(table))
    head, *body = (
        " & ".join(_replaced(text, _LATEX) for text in row) + r" \\"
        for row in (table.header, *([shown(cell) for cell in row] for row in table.rows))
    )
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_replaced(table.caption, _LATEX)}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        head,
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def comma_separated(table: Table) -> str:
    """CSV with a header line; a column of intervals becomes three, the bounds named `... low` and `... high`."""
    parts = [any(isinstance(row[i], Interval) for row in table.rows) for i in range(len(table.header))]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    titles = zip(table.header, parts, strict=True)
    writer.writerow([name for title, three in titles for name in _titles(title, three)])
    for row in table.rows:
        writer.writerow([value for cell, three in zip(row, parts, strict=True) for value in _values(cell, three)])
    return buffer.getvalue()


def _titles(title: str, three: bool) -> list[str]:
    return [title, f"{title} low", f"{title} high"] if three else [title]


def _values(cell: Cell, three: bool) -> list[str | int | float]:
    if isinstance(cell, Interval):
        return [cell.value, cell.low, cell.high]
    return ["" if cell is None else cell, *(["", ""] if three else [])]


def _numeric(table: Table) -> list[bool]:
    """Per column, whether it holds no text: such columns are set flush right."""
    return [not any(isinstance(row[i], str) for row in table.rows) for i in range(len(table.header))]


def _replaced(text: str, by: dict[str, str]) -> str:
    return "".join(by.get(c, c) for c in text)
