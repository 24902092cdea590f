"""Every notebook in notebooks/ is stored as a reader should meet it. Whether it runs, test_execution.py says."""

import ast
import re
from itertools import pairwise
from pathlib import Path

import nbformat
import pytest
from course import LESSONS, NOTEBOOKS, code_cells, markdown_of, noise, outputs, read
from nbformat import NotebookNode
from prose import Images

MOST_BYTES = 400_000
MOST_LINES = 15

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
each_lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)


def long_functions(source: str) -> list[str]:
    functions = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return [f.name for f in functions if (f.end_lineno or 0) - f.lineno + 1 > MOST_LINES]


def pictures_without_alt(notebook: NotebookNode) -> list[str]:
    """Every picture among the outputs that a reader who doesn't see it would miss."""
    missed = []
    for output in outputs(notebook):
        data = output.get("data", {})
        alts = Images(data.get("text/html", "")).alts
        pictured = any(kind.startswith("image/") for kind in data)
        if (pictured and not alts) or not all(alt and alt.strip() for alt in alts):
            missed.append(data.get("text/plain", "")[:60])
    return missed


def exercises(notebook: NotebookNode) -> set[str]:
    """Numbers of the exercises whose visible tests a notebook holds."""
    return {number for cell in code_cells(notebook) for number in re.findall(r'"exercise (\d)', cell.source)}


def solved(notebook: NotebookNode) -> set[str]:
    """Numbers of the exercises that a notebook of solutions treats, each in a code cell below its heading."""
    pairs = zip(notebook.cells, notebook.cells[1:], strict=False)
    below = [above.source for above, cell in pairs if above.cell_type == "markdown" and cell.cell_type == "code"]
    return {number for text in below for number in re.findall(r"^(?:## |\*\*)(\d) · ", text, re.MULTILINE)}


@each_lesson
def test_it_has_the_form(path: Path) -> None:
    """All its parts; exercises with folded hints and solutions, each of them solved and checked elsewhere."""
    notebook = read(path)
    text = markdown_of(notebook)
    for part in ("**Claim.**", "| time |", "| memory |", "| hardware |", "You will", "Predict, then open", "## Limits"):
        assert part in text
    assert "## Change one number" in text and "## Read on" in text
    asked = exercises(notebook)
    assert 2 <= len(asked) <= 4
    assert text.count("<summary>Hint</summary>") == text.count("<summary>Solution</summary>") == len(asked)
    solutions = path.parent / "solutions" / f"{path.stem.partition('_')[0]}_solutions.ipynb"
    assert solved(read(solutions)) == asked
    assert 3 <= len(set(re.findall(r"\]\((https?://[^)]+)\)", text))) <= 6
    stubs = re.compile(r"= None|return None|^def \w+\(.*\): \.\.\.$|# your round here", re.MULTILINE)
    assert sum(bool(stubs.search(cell.source)) for cell in code_cells(notebook)) >= len(asked)


@each_lesson
def test_what_can_be_recorded_is_switched_at_the_top(path: Path) -> None:
    """FAST is the first cell's, except where all is computed anew in any case, and the hardware line says so."""
    notebook = read(path)
    if any("obtain(" in cell.source for cell in code_cells(notebook)):
        assert "FAST = fast()" in code_cells(notebook)[0].source
    else:
        assert "nothing is recorded, all of it runs live" in notebook.cells[0].source


@pytest.mark.parametrize(("one", "other"), list(pairwise(LESSONS)), ids=lambda path: path.stem)
def test_neighbours_lead_to_each_other(one: Path, other: Path) -> None:
    """By the last cell, whose arrows point back and on."""
    assert re.search(rf"\[[^]]+ →\]\({other.name}\)", read(one).cells[-1].source)
    assert re.search(rf"\[← [^]]+\]\({one.name}\)", read(other).cells[-1].source)


@each
def test_its_stored_recording_lines_are_fast_and_fresh(path: Path) -> None:
    for output in outputs(read(path)):
        if output.output_type == "stream":
            assert "recorded again" not in output.text
            assert "STALE" not in output.text


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@each
def test_it_is_stored_as_a_reader_should_meet_it(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    assert path.stat().st_size <= MOST_BYTES
    assert "widgets" not in notebook.metadata  # some viewers refuse to show a notebook that has them
    assert notebook.metadata.kernelspec.name == "python3"
    assert outputs(notebook), "no outputs are stored: execute it before storing it"
    assert noise(notebook) == []
    assert [name for cell in code_cells(notebook) for name in long_functions(cell.source)] == []
    assert pictures_without_alt(notebook) == []


def tagged(notebook: NotebookNode, kind: str) -> dict[str, str]:
    """Sources of the cells tagged `exercise-X` or `check-X`, by X; a check without its final lines, which run it."""
    found = {}
    for cell in code_cells(notebook):
        for tag in cell.metadata.get("tags", []):
            if tag.startswith(f"{kind}-"):
                found[tag.removeprefix(f"{kind}-")] = cell.source.split("\n\n\nprint(")[0]
    return found


# Where cells are tagged "exercise" and "check", the tags say what must be the same in both notebooks.
TAGGED = [path for path in NOTEBOOKS if path.parent.name == "solutions" and tagged(read(path), "exercise")]


def test_some_solutions_are_tagged() -> None:
    assert {"00_solutions", "08_solutions"} <= {path.stem for path in TAGGED}


@pytest.mark.parametrize("path", TAGGED, ids=lambda path: path.stem)
def test_what_is_folded_in_a_notebook_is_what_its_solutions_run(path: Path) -> None:
    """The solutions notebook is executed with the others: there the same checks must print that they passed."""
    (original,) = path.parents[1].glob(f"{path.stem.partition('_')[0]}_*.ipynb")
    notebook, solutions = read(original), read(path)
    folded = markdown_of(notebook)
    solved, stubs = tagged(solutions, "exercise"), tagged(notebook, "exercise")
    assert solved and solved.keys() == stubs.keys() == tagged(solutions, "check").keys()
    assert tagged(solutions, "check") == tagged(notebook, "check")
    for name, source in solved.items():
        assert f"```python\n{source}\n```" in folded, f"the folded solution of {name} differs"
        assert source != stubs[name]


# --- the checks themselves: each finds what it is there for ---------------------------------------------


def notebook_with(html: str | None) -> NotebookNode:
    data = {"image/png": "AAAA"} | ({} if html is None else {"text/html": html})
    output = nbformat.v4.new_output("display_data", data)
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", outputs=[output])])


@pytest.mark.parametrize(
    ("html", "missed"),
    [
        ('<figure><img src="x" alt="a tree"></figure>', 0),
        (None, 1),
        ('<img src="x">', 1),
        ('<img src="x" alt=" ">', 1),
        ('<img src="x" alt="a"><img src="y">', 1),
    ],
)
def test_a_picture_without_alt_text_is_found(html: str | None, missed: int) -> None:
    assert len(pictures_without_alt(notebook_with(html))) == missed


def test_a_long_function_is_found() -> None:
    body = "    pass\n"
    assert long_functions("def f():\n" + body * 15 + "\nclass A:\n    def g(self):\n    " + body) == ["f"]
    assert long_functions("def f():\n" + body * 14) == []


def test_noise_is_found() -> None:
    notebook = notebook_with('<img src="x" alt="a">')
    assert noise(notebook) == []
    notebook.cells[0].outputs.append(nbformat.v4.new_output("stream", name="stderr", text="a warning"))
    notebook.cells[0].outputs.append(nbformat.v4.new_output("error", ename="E", evalue="", traceback=[]))
    assert noise(notebook) == ["a warning", "E"]
