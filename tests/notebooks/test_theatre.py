"""Notebooks that show the tree theatre store its twin beside it, and nothing of the theatre itself."""

from pathlib import Path

import pytest
from course import NOTEBOOKS, code_cells, read
from nbformat import NotebookNode

WIDGET = "application/vnd.jupyter.widget-view+json"
STAGES = {"00_quickstart", "03_building_a_tree", "04_conditional_and_marginal", "05_calibration"}
SHOWING = [path for path in NOTEBOOKS if "TreeTheatre" in path.read_text(encoding="utf-8")]


def theatres(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in code_cells(notebook) if any(WIDGET in o.get("data", {}) for o in cell.outputs)]


def test_the_theatre_stands_where_it_should() -> None:
    assert STAGES <= {path.stem for path in SHOWING}


@pytest.mark.parametrize("path", SHOWING, ids=lambda path: path.stem)
def test_one_theatre_with_its_twin_before_it_and_a_line_in_its_place(path: Path) -> None:
    (cell,) = theatres(read(path))
    twin, theatre = (output.data for output in cell.outputs)
    assert "<figure" in twin["text/html"] and len(twin["text/plain"]) > 100  # what it shows, in words
    assert set(theatre) == {WIDGET, "text/plain"}
    assert theatre["text/plain"] == "The tree theatre: run this cell to see it move."
