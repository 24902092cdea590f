"""Every notebook in notebooks/: it runs from top to bottom, and it is stored as a reader should meet it."""

import ast
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

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
RECORDED = [p for p in NOTEBOOKS if "recording import" in p.read_text(encoding="utf-8")]
each_recorded = pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)


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


def exercises(notebook: NotebookNode) -> set[str]:
    """Numbers of the exercises whose visible tests a notebook holds."""
    return {number for cell in code_cells(notebook) for number in re.findall(r'"exercise (\d)', cell.source)}


def solved(notebook: NotebookNode) -> set[str]:
    """Numbers of the exercises that a notebook of solutions treats, each in a code cell below its heading."""
    pairs = zip(notebook.cells, notebook.cells[1:], strict=False)
    below = [above.source for above, cell in pairs if above.cell_type == "markdown" and cell.cell_type == "code"]
    return {number for text in below for number in re.findall(r"^(?:## |\*\*)(\d) · ", text, re.MULTILINE)}


def links(notebook: NotebookNode) -> list[str]:
    """Targets of all links to files beside the notebook."""
    found = [t for c in notebook.cells if c.cell_type == "markdown" for t in re.findall(r"\]\(([^)#]+)", c.source)]
    return [target for target in found if not target.startswith("http")]


@each_recorded
def test_it_has_the_form(path: Path) -> None:
    """FAST at the top, exercises with folded hints and solutions, and each of them solved and checked elsewhere."""
    notebook = read(path)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert "FAST = fast()" in code_cells(notebook)[0].source
    for part in ("**Claim.**", "| time |", "| memory |", "| hardware |", "You will", "Predict, then open", "## Limits"):
        assert part in text
    asked = exercises(notebook)
    assert 2 <= len(asked) <= 4
    assert text.count("<summary>Hint</summary>") == text.count("<summary>Solution</summary>") == len(asked)
    solutions = path.parent / "solutions" / f"{path.stem.partition('_')[0]}_solutions.ipynb"
    assert solved(read(solutions)) == asked
    assert 3 <= len(set(re.findall(r"\]\((https?://[^)]+)\)", text))) <= 6
    stubs = re.compile(r"= None|return None|^def \w+\(.*\): \.\.\.$|# your round here", re.MULTILINE)
    assert sum(bool(stubs.search(cell.source)) for cell in code_cells(notebook)) >= len(asked)


@each
def test_its_stored_recording_lines_are_fast_and_fresh(path: Path) -> None:
    for output in outputs(read(path)):
        if output.output_type == "stream":
            assert "recorded again" not in output.text
            assert "STALE" not in output.text


@each
def test_its_links_to_other_files_lead_somewhere(path: Path) -> None:
    for target in links(read(path)):
        assert (path.parent / target).exists(), target


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


# Where cells are tagged "exercise" and "check", the tags say what must be the same in both notebooks.
TAGGED = [path for path in NOTEBOOKS if path.parent.name == "solutions" and tagged(read(path), "exercise")]


def test_some_solutions_are_tagged() -> None:
    assert [path.stem for path in TAGGED] == ["08_solutions"]


@pytest.mark.parametrize("path", TAGGED, ids=lambda path: path.stem)
def test_what_is_folded_in_a_notebook_is_what_its_solutions_run(path: Path) -> None:
    """The solutions notebook is executed with the others: there the same checks must print that they passed."""
    (original,) = path.parents[1].glob(f"{path.stem.partition('_')[0]}_*.ipynb")
    notebook, solutions = read(original), read(path)
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


FULL = ["03_building_a_tree"]  # computed anew in the tests too; the others only by `make record`
TOLERANCE = 1e-3  # of recorded numbers, as the notebooks state


def differences(found: Any, stored: Any, place: str = "") -> list[str]:
    """Where two contents of JSON files differ by more than the tolerance, numbers apart from rounding."""
    if isinstance(found, dict) and isinstance(stored, dict) and found.keys() == stored.keys():
        return [d for key in found for d in differences(found[key], stored[key], f"{place}/{key}")]
    if isinstance(found, list) and isinstance(stored, list) and len(found) == len(stored):
        return [
            d for i, (a, b) in enumerate(zip(found, stored, strict=True)) for d in differences(a, b, f"{place}/{i}")
        ]
    if isinstance(found, float) and isinstance(stored, float):
        return [] if abs(found - stored) <= TOLERANCE else [place]
    return [] if found == stored else [place]


@pytest.mark.parametrize("stem", FULL)
@pytest.mark.model
@pytest.mark.slow
def test_full_gives_what_was_recorded(stem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the same weights: a recording of other ones is stale, which the stored outputs may not be."""
    monkeypatch.setenv("DOMINOTREE_FULL", "1")
    monkeypatch.setenv("DOMINOTREE_TRACES", str(tmp_path / "traces"))
    notebook = read(next(path for path in NOTEBOOKS if path.stem == stem))
    (tmp_path / "notebooks").mkdir()
    resources = {"metadata": {"path": str(tmp_path / "notebooks")}}
    NotebookClient(notebook, timeout=CELL_SECONDS, startup_timeout=120, resources=resources).execute()
    written = sorted((tmp_path / "traces").glob("*.json"))
    assert written
    for path in written:
        stored = ROOT / "data" / "traces" / path.name
        assert differences(json.loads(path.read_text()), json.loads(stored.read_text())) == []


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


def test_a_difference_is_found_and_rounding_is_not() -> None:
    stored = {"a": [1, 2.0], "b": "x"}
    assert differences({"a": [1, 2.0001], "b": "x"}, stored) == []
    assert differences({"a": [1, 2.1], "b": "y"}, stored) == ["/a/1", "/b"]
    assert differences({"a": [1], "b": "x"}, stored) == ["/a"]
    assert differences({"a": [1, 2.0]}, stored) == [""]
