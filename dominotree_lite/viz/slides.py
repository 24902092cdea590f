"""The notebooks as slides: HTML decks that open from disk and load nothing over a network.

`python -m dominotree_lite.viz.slides notebooks out/slides` is what `make slides` runs. Decks show what the notebooks
store; nothing is executed. A cell's own slide type wins (JupyterLab sets it); the others are cut at headings. nbconvert
makes reveal.js's sections, but reveal.js itself would come from the network, so a style and a few lines of script
show them here: a slide a screen, arrow keys go on. This file does not know what is in a notebook.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import nbformat
from nbconvert.exporters.slides import SlidesExporter
from nbformat import NotebookNode

from .site import REMOTE, notebooks_below, publish, write_page

MOST_LINES = 12  # code above it stays out of a slide: the lecturer has the notebook for that
PLAYER = re.compile(r"<script\b.*?</script>|<link\b[^>]*>", re.DOTALL)
FENCE, HEADING = re.compile(r"^\s*```"), re.compile(r"^(#{1,3}) ")
SHOW = """<style>
html { scroll-snap-type: y proximity; }
body { counter-reset: slide; margin: 0; overflow: auto; }
.reveal { font-size: 100%; }
.slides section section { scroll-snap-align: start; min-height: 100vh; box-sizing: border-box; padding: 4vh 6vw;
  position: relative; border-bottom: 1px solid #ccc; counter-increment: slide; break-after: page; }
.slides section section::after { content: counter(slide); position: absolute; right: 2vw; bottom: 1vh; color: #555; }
:root { --jp-code-font-size: 15px !important; --jp-cell-prompt-width: 0px !important; }
.jp-InputPrompt, .jp-OutputPrompt { display: none; }
.slides img { max-width: 100%; max-height: 75vh; }
</style>
<script>
document.addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, PageDown: 1, ArrowLeft: -1, PageUp: -1 }[event.key];
  if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
  const slides = [...document.querySelectorAll(".slides section section")];
  const tops = slides.map((slide) => slide.getBoundingClientRect().top);
  const here = tops.filter((top) => top < 2).length - 1;
  const next = slides[here + step];
  if (next) { event.preventDefault(); next.scrollIntoView(); }
});
</script>
</head>"""


def build_slides(source: Path, out: Path) -> list[Path]:
    """Every notebook below `source` as a deck of the same name in `out`. Returns the decks.

    Raises InputError if there is no notebook.
    """
    exporter = SlidesExporter(**dict.fromkeys(REMOTE, ""))
    decks = []
    for path in notebooks_below(source):
        notebook = cut(nbformat.read(path, as_version=4))
        html, _ = exporter.from_notebook_node(notebook, {"metadata": {"name": path.stem}})
        decks.append(out / path.relative_to(source).with_suffix(".html"))
        write_page(decks[-1], PLAYER.sub("", html).replace("</head>", SHOW, 1), out, source.parent / "figures")
    return decks


def cut(notebook: NotebookNode) -> NotebookNode:
    """A copy in which every cell has a slide type: `slide`, `subslide`, `-` (goes on) or `skip`.

    Headings of the first two levels begin a slide, those of the third one below it; so does code, with what it puts
    out. Text without a heading belongs to what stands before it. Code of more than MOST_LINES lines is left
    out, and its whole cell where it puts nothing out.
    """
    deck = nbformat.v4.new_notebook(metadata=notebook.metadata)
    for cell in notebook.cells:
        own = "slide_type" in cell.metadata.get("slideshow", {})
        parts = [cell] if own or cell.cell_type != "markdown" else _parts(cell)
        deck.cells += [part if own else _typed(part) for part in parts]
    return deck


def _parts(cell: NotebookNode) -> list[NotebookNode]:
    """The cell, cut before each heading that is not in a code block."""
    parts: list[list[str]] = [[]]
    fenced = False
    for line in cell.source.splitlines():
        fenced ^= bool(FENCE.match(line))
        if HEADING.match(line) and not fenced and any(map(str.strip, parts[-1])):
            parts.append([])
        parts[-1].append(line)
    return [nbformat.v4.new_markdown_cell("\n".join(lines)) for lines in parts]


def _typed(cell: NotebookNode) -> NotebookNode:
    cell = nbformat.from_dict(cell)
    kind = "-"
    if cell.cell_type == "code":
        long = len(cell.source.splitlines()) > MOST_LINES
        kind = "skip" if long and not cell.outputs else "subslide"
        if long:
            cell.metadata["transient"] = {"remove_source": True}  # as nbconvert's own preprocessors say it
    elif heading := HEADING.match(cell.source):
        kind = "slide" if len(heading[1]) < 3 else "subslide"
    cell.metadata["slideshow"] = {"slide_type": kind}
    return cell


if __name__ == "__main__":
    sys.exit(publish(sys.argv[1:], build_slides))
