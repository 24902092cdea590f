"""The notebooks as a static site: HTML pages that open from disk and load nothing over a network.

`python -m dominotree_lite.viz.site notebooks out/site` is what `make site` runs. Pages show what the notebooks store;
nothing is executed. This file does not know what is in a notebook.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
from nbconvert import HTMLExporter

from ..errors import InputError
from ..files import write_text

# The template's own scripts serve formulas, diagrams and widgets, and come from the network: the pages do without.
REMOTE = ("mathjax_url", "require_js_url", "jquery_url", "mermaid_js_url", "mermaid_layout_elk_js_url")
TEMPLATE_SCRIPT = re.compile(
    r'<script src="">\s*</script>|<script type="text/x-mathjax-config">.*?</script>'
    r'|<script type="module">(?:(?!</script>).)*jp-Mermaid.*?</script>',
    re.DOTALL,
)
FIGURE = re.compile(r'src="(?:\.\./)+figures/([\w.-]+)"')
WIDGET, THEATRE = "application/vnd.jupyter.widget-view+json", "theatre.html"
NOTEBOOK_LINK = re.compile(r'href="((?![a-z]+:)[^"#]*)\.ipynb(#[^"]*)?"')


def build_site(source: Path, out: Path) -> list[Path]:
    """Every notebook below `source` as a page of the same name in `out`, and its README.md as index.html.

    Pictures that pages show from the folder figures beside `source` are copied. Where a notebook shows the tree
    theatre, its page holds the theatre's own, made from data/traces/theatre.json beside `source`. Returns the pages.
    Raises InputError if there is no notebook.
    """
    exporter = HTMLExporter(**dict.fromkeys(REMOTE, ""))
    pages = []
    for path in notebooks_below(source):
        pages.append(out / path.relative_to(source).with_suffix(".html"))
        notebook = nbformat.read(path, as_version=4)
        _stage(notebook, pages[-1], out, source.parent / "data" / "traces" / "theatre.json")
        html, _ = exporter.from_notebook_node(notebook, {"metadata": {"name": path.stem}})
        write_page(pages[-1], html, out, source.parent / "figures")
    index = source / "README.md"
    if index.exists():
        cell = nbformat.v4.new_markdown_cell(index.read_text(encoding="utf-8"), id="index")
        contents = nbformat.v4.new_notebook(cells=[cell])
        pages.append(out / "index.html")
        html, _ = exporter.from_notebook_node(contents, {"metadata": {"name": "Notebooks"}})
        write_page(pages[-1], html, out, source.parent / "figures")
    return pages


def _stage(notebook: nbformat.NotebookNode, page: Path, out: Path, trace: Path) -> None:
    """Put the theatre's page in place of each widget that the notebook shows; its state is not stored."""
    up = "../" * (len(page.relative_to(out).parts) - 1)
    frame = f'<iframe src="{up}{THEATRE}" title="The tree theatre" style="width:100%;height:1250px;border:0"></iframe>'
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        if WIDGET in output.get("data", {}):
            output.data = {"text/html": frame}
            if not (out / THEATRE).exists():
                from .theatre import TreeTheatre

                TreeTheatre.from_trace(trace).export_html(out / THEATRE)


def notebooks_below(source: Path) -> list[Path]:
    """Every notebook in the folder and below, sorted. Raises InputError if there is none."""
    notebooks = sorted(path for path in source.rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts)
    if not notebooks:
        raise InputError(f"{source}: holds no notebook to make pages of")
    return notebooks


def write_page(page: Path, html: str, out: Path, figures: Path) -> None:
    """Store a page below `out`, without the template's scripts; its figures come along, and its links lead to pages."""
    up = "../" * (len(page.relative_to(out).parts) - 1)
    for name in FIGURE.findall(html):
        (out / "figures").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(figures / name, out / "figures" / name)
    html = FIGURE.sub(rf'src="{up}figures/\1"', TEMPLATE_SCRIPT.sub("", html))
    page.parent.mkdir(parents=True, exist_ok=True)
    write_text(page, NOTEBOOK_LINK.sub(r'href="\1.html\2"', html))


def publish(arguments: list[str], build: Callable[[Path, Path], list[Path]]) -> int:
    """`SOURCE OUT`: let `build` fill `out` anew and print the page to open. Returns the exit code."""
    if len(arguments) != 2:
        print("give two folders: the notebooks, and where the pages go", file=sys.stderr)
        return 2
    source, out = map(Path, arguments)
    try:
        new = out.with_name(out.name + ".new")
        shutil.rmtree(new, ignore_errors=True)
        build(source, new)
        shutil.rmtree(out, ignore_errors=True)
        new.rename(out)
    except (InputError, OSError) as error:
        print(f"pages: {error}", file=sys.stderr)
        return 2
    pages = sorted(out.glob("*.html"))
    print(next((page for page in pages if page.name == "index.html"), pages[0]))
    return 0


if __name__ == "__main__":
    sys.exit(publish(sys.argv[1:], build_site))
