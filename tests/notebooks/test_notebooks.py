"""Every notebook in notebooks/: it runs from top to bottom, and it is stored as a reader should meet it."""

import ast
import re
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted(p for p in (ROOT / "notebooks").rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)
MOST_BYTES = 400_000
MOST_LINES = 15
CELL_SECONDS = 600  # stops a cell that hangs; how long one takes is not judged here

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


class Images(HTMLParser):
    """The alt texts of all images; None where there is none."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.alts: list[str | None] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            self.alts.append(dict(attrs).get("alt"))


def read(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook: NotebookNode) -> list[NotebookNode]:
    return [output for cell in code_cells(notebook) for output in cell.outputs]


def noise(notebook: NotebookNode) -> list[str]:
    """Error outputs, and whatever was written to standard error: warnings, progress bars."""
    return [
        o.get("text", "") or o.ename for o in outputs(notebook) if o.output_type == "error" or o.get("name") == "stderr"
    ]


def kinds(cell: NotebookNode) -> set[str]:
    """What a cell put out, without its content: a stream's name or a display's types."""
    return {name for o in cell.outputs for name in ([o.name] if o.output_type == "stream" else o.get("data", {}))}


def long_functions(source: str) -> list[str]:
    functions = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return [f.name for f in functions if (f.end_lineno or 0) - f.lineno + 1 > MOST_LINES]


def images_without_alt(notebook: NotebookNode) -> list[str]:
    """Every picture that a reader who doesn't see it would miss: in outputs, in HTML, in Markdown."""
    missed = []
    for output in outputs(notebook):
        data = output.get("data", {})
        alts = Images(data.get("text/html", "")).alts
        pictured = any(kind.startswith("image/") for kind in data)
        if (pictured and not alts) or not all(alt and alt.strip() for alt in alts):
            missed.append(f"output: {data.get('text/plain', '')[:60]}")
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            alts = [*Images(cell.source).alts, *re.findall(r"!\[([^\]]*)\]\(", cell.source)]
            missed += [f"text: {cell.source[:60]}" for alt in alts if not (alt and alt.strip())]
    return missed


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
    assert images_without_alt(notebook) == []


def tagged(notebook: NotebookNode, kind: str) -> dict[str, str]:
    """Sources of the cells tagged `exercise-X` or `check-X`, by X; a check without its final lines, which run it."""
    found = {}
    for cell in code_cells(notebook):
        for tag in cell.metadata.get("tags", []):
            if tag.startswith(f"{kind}-"):
                found[tag.removeprefix(f"{kind}-")] = cell.source.split("\n\n\nprint(")[0]
    return found


SOLVED = [path for path in NOTEBOOKS if path.parent.name == "solutions"]


@pytest.mark.parametrize("path", SOLVED, ids=lambda path: path.stem)
def test_what_is_folded_in_a_notebook_is_what_its_solutions_run(path: Path) -> None:
    """The solutions notebook is executed with the others: there the same checks must print that they passed."""
    notebook, solutions = read(path.parents[1] / path.name), read(path)
    folded = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    solved, stubs = tagged(solutions, "exercise"), tagged(notebook, "exercise")
    assert solved and solved.keys() == stubs.keys() == tagged(solutions, "check").keys()
    assert tagged(solutions, "check") == tagged(notebook, "check")
    for name, source in solved.items():
        assert f"```python\n{source}\n```" in folded, f"the folded solution of {name} differs"
        assert source != stubs[name]


@each
@pytest.mark.model
@pytest.mark.slow
def test_it_runs_from_top_to_bottom(path: Path, tmp_path: Path) -> None:
    """In a folder that looks like the repository, so that the figures a notebook writes don't replace ours."""
    (tmp_path / "data").symlink_to(ROOT / "data")
    (tmp_path / "figures").mkdir()
    here = tmp_path / path.parent.relative_to(ROOT)
    here.mkdir(parents=True)
    notebook = read(path)
    stored = [kinds(cell) for cell in code_cells(notebook)]
    resources = {"metadata": {"path": str(here)}}
    NotebookClient(notebook, timeout=CELL_SECONDS, startup_timeout=120, resources=resources).execute()
    assert noise(notebook) == []
    assert [kinds(cell) for cell in code_cells(notebook)] == stored, "the stored outputs are not from these cells"
    for figure in (tmp_path / "figures").iterdir():
        assert (ROOT / "figures" / figure.name).exists(), f"figures/{figure.name} is written but not stored"


# --- the checks themselves: each finds what it is there for ---------------------------------------------


def notebook_with(html: str | None, text: str = "") -> NotebookNode:
    data = {"image/png": "AAAA"} | ({} if html is None else {"text/html": html})
    output = nbformat.v4.new_output("display_data", data)
    cells = [nbformat.v4.new_code_cell("1", outputs=[output]), nbformat.v4.new_markdown_cell(text)]
    return nbformat.v4.new_notebook(cells=cells)


@pytest.mark.parametrize(
    ("html", "text", "missed"),
    [
        ('<figure><img src="x" alt="a tree"></figure>', "![a tree](x.png)", 0),
        (None, "", 1),
        ('<img src="x">', "", 1),
        ('<img src="x" alt=" ">', "", 1),
        ('<img src="x" alt="a"><img src="y">', "", 1),
        ('<img src="x" alt="a">', "![](x.png) and ![b](y.png)", 1),
        ('<img src="x" alt="a">', '<img src="x.png">', 1),
    ],
)
def test_a_picture_without_alt_text_is_found(html: str | None, text: str, missed: int) -> None:
    assert len(images_without_alt(notebook_with(html, text))) == missed


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
