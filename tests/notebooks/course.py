"""The notebooks of the course, read. It judges nothing."""

import re
from pathlib import Path

import nbformat
from nbformat import NotebookNode

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted(p for p in (ROOT / "notebooks").rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)
LESSONS = [path for path in NOTEBOOKS if re.match(r"\d\d_", path.name) and path.parent.name == "notebooks"]


def read(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def markdown_of(notebook: NotebookNode) -> str:
    """All text cells, with a blank line between them."""
    return "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


def outputs(notebook: NotebookNode) -> list[NotebookNode]:
    return [output for cell in code_cells(notebook) for output in cell.outputs]


def noise(notebook: NotebookNode) -> list[str]:
    """Error outputs, and whatever was written to standard error: warnings, progress bars."""
    return [
        o.get("text", "") or o.ename for o in outputs(notebook) if o.output_type == "error" or o.get("name") == "stderr"
    ]
