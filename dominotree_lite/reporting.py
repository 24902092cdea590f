"""The command `report`: records in, tables and figures out. The same records give the same bytes.

Everything is made before anything is written. What is heavy is imported only when needed.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from .arguments import Commands, Parser, add_command

if TYPE_CHECKING:
    from .records import RecordSet
    from .report import Chosen
    from .study import Study

FORMS = (".md", ".tex", ".csv")


def add_report(commands: Commands[Parser]) -> None:
    """Add the command."""
    text = "tables (Markdown, LaTeX, CSV) and figures (SVG) of what `dominotree bench` measured"
    parser = add_command(commands, "report", _report, text)
    add = parser.add_argument
    add("records", type=Path, nargs="+", metavar="RECORDS.jsonl", help="files of `dominotree bench`, read as one")
    add("--out", type=Path, required=True, metavar="FOLDER", help="where report.md, tables and figures go")
    add("--against", metavar="METHOD", help="what others are compared with, pair by pair (dominotree)")


def _report(arguments: argparse.Namespace) -> None:
    from .files import write_bytes
    from .records import load_records

    contents = written(load_records(*arguments.records), arguments.against)
    for name, content in contents.items():
        write_bytes(arguments.out / name, content)
    print(arguments.out / "report.md")


def written(records: RecordSet, against: str | None = None) -> dict[str, bytes]:
    """Every file of a report by its path. Where records were made under several conditions, each has a folder.

    Raises InputError for no records, and for what can't be compared.
    """
    from .study import studies

    found = studies(records)
    folders = [""] if len(found) == 1 else [f"{n}-{_stem(s)}/" for n, s in enumerate(found, start=1)]
    files: dict[str, bytes] = {}
    pages = []
    for folder, study in zip(folders, found, strict=True):
        made = _files(study, against)
        pages.append(_page(study, folder, made))
        files |= {folder + name: content for name, content in made.items()}
    files["report.md"] = ("# Report\n\n" + "\n".join(pages)).encode()
    return files


def _stem(study: Study) -> str:
    words = (study.conditions.target, study.conditions.device, study.conditions.dtype, study.conditions.linear)
    return re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(words)).strip("-.")


def _files(study: Study, against: str | None) -> dict[str, bytes]:
    from .report import Chosen, tables
    from .tables import comma_separated, latex, markdown

    files: dict[str, bytes] = {}
    for table in tables(study, against):
        for ending, form in zip(FORMS, (markdown, latex, comma_separated), strict=True):
            files[table.name + ending] = form(table).encode()
    return files | _figures(Chosen.on_half(study))


def _figures(chosen: Chosen) -> dict[str, bytes]:
    from .viz import bench, style

    return {f"{name}.svg": style.svg(figure) for name, figure in bench.pictures(chosen).items()}


def _page(study: Study, folder: str, files: dict[str, bytes]) -> str:
    counts = f"{len(study.prompts)} prompts of {len(study.suites)} suites. Intervals are bootstrap, 95 %, over"
    counts += " conversations; that of a single one has no width."
    parts = [f"## {study.conditions}", counts]
    parts += [content.decode() for name, content in files.items() if name.endswith(".md")]
    parts += [f"![{_said(name)}]({folder}{name})" for name in files if name.endswith(".svg")]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _said(name: str) -> str:
    what, _, temperature = name.removesuffix(".svg").rpartition("-T")
    return f"{what}, temperature {temperature}: the numbers stand in {what}.csv"
