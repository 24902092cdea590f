"""What the commands show: tables and progress, rich on a terminal, plain in a pipe and under CI.

It knows a comparison and how to write it down; it runs nothing.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tqdm import tqdm

from .decode import Round
from .evaluate import Comparison, Progress
from .prompts import PromptRow

PLAIN_WIDTH = 120  # columns where there is no terminal to ask
HEADERS = ("suite", "method", "prompts", "tau", "tokens/s", "speed-up", "same as ar")
STAGES = ("draft", "build", "verify", "commit")


def is_live(stream: TextIO) -> bool:
    """Whether a person watches this stream: a terminal, and not that of a CI run."""
    return stream.isatty() and not os.environ.get("CI")


def console() -> Console:
    """Standard output, without colours or escape codes unless it is live."""
    if is_live(sys.stdout):
        return Console()
    return Console(force_terminal=False, no_color=True, width=PLAIN_WIDTH)


@contextmanager
def progress_over(total: int) -> Iterator[Progress]:
    """A function to call after each prompt: a bar on a terminal, else a line, both on standard error."""
    live = is_live(sys.stderr)
    with tqdm(total=total, unit="prompt", disable=not live, dynamic_ncols=True) as bar:
        done = 0

        def step(prompt: PromptRow) -> None:
            nonlocal done
            done += 1
            bar.update()
            if not live:
                print(f"{done}/{total} {prompt.id}", file=sys.stderr, flush=True)

        yield step


@contextmanager
def progress_over_cells(total: int) -> Iterator[Callable[[PromptRow, object], None]]:
    """As `progress_over`, called after each cell of each prompt; a line says how much time is left."""
    live, began, done = is_live(sys.stderr), time.monotonic(), 0
    with tqdm(total=total, unit="cell", disable=not live, dynamic_ncols=True) as bar:

        def step(prompt: PromptRow, cell: object) -> None:
            nonlocal done
            done += 1
            bar.update()
            if not live:
                left = tqdm.format_interval((time.monotonic() - began) / done * (total - done))
                print(f"{done}/{total} {prompt.id} {cell}, {left} left", file=sys.stderr, flush=True)

        yield step


def print_comparison(comparison: Comparison, suites: Sequence[str] | None = None) -> None:
    """The table of these suites (all if None), and a line for each text that is not the baseline's."""
    screen = console()
    screen.print(_table(comparison, suites))
    for line in _divergence_lines(comparison):
        screen.print(line, highlight=False, markup=False, soft_wrap=True)


def _title(used: dict[str, Any]) -> str:
    place = used["machine"]["gpu"] or f"{used['machine']['processor']}, {used['threads']} threads"
    return (
        f"{used['target']}, {used['dtype']}, on {place}: budget {used['budget']}, temperature "
        f"{used['temperature']:g}, {used['max_new_tokens']} new tokens a turn at most"
    )


def _table(comparison: Comparison, suites: Sequence[str] | None) -> Table:
    """A line a row, suites apart, with the milliseconds a round of the four stages."""
    rows = [row for row in comparison.rows if suites is None or row.suite in suites]
    title = _title(comparison.settings)
    style = box.ROUNDED if is_live(sys.stdout) else None
    table = Table(title=title, title_justify="left", box=style, pad_edge=False)
    for header in HEADERS:
        table.add_column(header, justify="left" if header in HEADERS[:2] else "right")
    for stage in STAGES:
        table.add_column(f"{stage} ms", justify="right", style="dim")
    suite = rows[0].suite
    for row in rows:
        if row.suite != suite:
            table.add_section() if style else table.add_row()
            suite = row.suite
        stages = comparison.stages(row.method, row.suite)
        table.add_row(
            row.suite,
            row.method,
            str(row.prompts),
            f"{row.tau:.2f}",
            f"{row.tokens_per_second:.1f}",
            "-" if row.speedup is None else f"{row.speedup:.2f}",
            "-" if row.identical_to_ar is None else f"{row.identical_to_ar}/{row.prompts}",
            *(f"{stages[stage]:.1f}" for stage in STAGES),
        )
    return table


def _divergence_lines(comparison: Comparison) -> list[str]:
    """One line for each text that is not the baseline's."""
    return [
        f"{d.id}, {d.method}: differs from ar at new token {d.position}, where the target's margin was "
        + ("not to be had: one text ends" if d.margin is None else f"{d.margin:.1e}")
        for d in comparison.divergences
    ]


def round_line(number: int, one: Round, decode: Callable[[int], str]) -> Text:
    """A round's tokens: [accepted draft tokens] in brackets, {the target's own} in braces."""
    line = Text(f"{number:>4}  {len(one.accepted):>2}  ")
    for place, token in enumerate(one.tokens):
        text = decode(token).replace("\n", "\\n") or "<special>"
        if place < len(one.accepted):
            line.append(f"[{text}]", style="green")
        else:
            line.append(f"{{{text}}}", style="bold yellow")
    return line
