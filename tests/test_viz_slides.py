"""Decks are cut where a lecturer would cut them, and they open without a network."""

import re
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from dominotree_lite.errors import InputError
from dominotree_lite.viz.slides import MOST_LINES, build_slides, cut

SAID = new_output("stream", text="said\n")


def kinds(*cells: NotebookNode) -> list[str]:
    return [cell.metadata.slideshow.slide_type for cell in cut(new_notebook(cells=list(cells))).cells]


def sources(*cells: NotebookNode) -> list[str]:
    return [cell.source for cell in cut(new_notebook(cells=list(cells))).cells]


def code(lines: int, *outputs: NotebookNode) -> NotebookNode:
    return new_code_cell("\n".join(["x = 1"] * lines), outputs=list(outputs))


def test_headings_cut_and_code_stands_below_them() -> None:
    cells = new_markdown_cell("# A\n\ntext\n\n## B\n\nmore\n\n### C\n\n#### D"), code(2, SAID), new_markdown_cell("so")
    assert sources(*cells) == ["# A\n\ntext\n", "## B\n\nmore\n", "### C\n\n#### D", "x = 1\nx = 1", "so"]
    assert kinds(*cells) == ["slide", "slide", "subslide", "subslide", "-"]


def test_a_comment_in_a_code_block_is_no_heading() -> None:
    block = "## A\n\n```python\n# b\n```\n"
    assert sources(new_markdown_cell(f"{block}\n## C")) == [block, "## C"]


def test_long_code_stays_out_and_its_output_stays() -> None:
    assert kinds(code(MOST_LINES), code(MOST_LINES + 1), code(MOST_LINES + 1, SAID)) == ["subslide", "skip", "subslide"]


def test_a_cells_own_slide_type_wins_and_the_notebook_is_left_alone() -> None:
    own = new_markdown_cell("## A\n\n## B", metadata={"slideshow": {"slide_type": "notes"}})
    plain = code(1)
    assert kinds(own, plain) == ["notes", "subslide"]
    assert "slideshow" not in plain.metadata


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "notebooks"
    (folder / "solutions").mkdir(parents=True)
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "dot.png").write_bytes(b"a picture")
    first = [
        new_markdown_cell("# One\n\n[two](solutions/02_two.ipynb) ![A dot](../figures/dot.png)"),
        new_code_cell("secret = 1\n" * (MOST_LINES + 1), outputs=[SAID]),
    ]
    nbformat.write(new_notebook(cells=first), folder / "01_one.ipynb")
    nbformat.write(new_notebook(cells=[new_markdown_cell("# Two")]), folder / "solutions" / "02_two.ipynb")
    return folder


def test_a_deck_is_whole_and_asks_for_nothing(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "slides"
    decks = build_slides(source, out)
    assert [str(deck.relative_to(out)) for deck in decks] == ["01_one.html", "solutions/02_two.html"]
    html = decks[0].read_text(encoding="utf-8")
    assert len(re.findall(r"<section\b", html)) == 3  # one slide, and within it the text and the output below it
    assert "said" in html and "secret" not in html
    assert 'href="solutions/02_two.html"' in html and 'src="figures/dot.png"' in html
    assert (out / "figures" / "dot.png").exists()
    assert re.findall(r"https?://[^\"' )]*\.(?:js|css)\b", html) == []
    assert re.findall(r"<(?:link|script src)\b", html) == []


def test_no_notebooks_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no notebook"):
        build_slides(tmp_path, tmp_path / "slides")
