"""The quickstart as a page: what a reader without Jupyter and without a network sees of the stored notebook."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
import pytest
from nbconvert import HTMLExporter
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook, new_output
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Route

QUICKSTART = Path(__file__).parents[2] / "notebooks" / "00_quickstart.ipynb"
NETWORK = re.compile(r"^(?!file:|data:)")
# nbconvert's template asks for these on every page. The quickstart has neither a formula nor a widget, so it must be
# whole without them.
TEMPLATE_ASKS = {
    HTMLExporter().mathjax_url: "MathJax, which sets formulas",
    HTMLExporter().require_js_url: "require.js, which loads widgets",
}


@dataclass
class Visit:
    """An opened page, and everything that went wrong on it apart from what the template could not load."""

    page: Page
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("pageerror", lambda error: self.faults.append(f"script: {error}"))
        self.page.on("console", self.note)
        self.page.context.route(NETWORK, self.block)

    def note(self, message: ConsoleMessage) -> None:
        if message.type == "error" and message.location["url"] not in TEMPLATE_ASKS:
            self.faults.append(f"console: {message.text}")

    def block(self, route: Route) -> None:
        if route.request.url not in TEMPLATE_ASKS:
            self.faults.append(f"network: {route.request.url}")
        route.abort()

    @property
    def errors(self) -> Locator:
        """Error outputs and what was written to standard error; the template marks both by this type."""
        return self.page.locator('[data-mime-type="application/vnd.jupyter.stderr"]')


@pytest.fixture
def visit(browser: Browser, tmp_path: Path) -> Iterator[Callable[[NotebookNode], Visit]]:
    """Opens a notebook, converted and not executed, as a file."""
    context = browser.new_context()

    def opened(notebook: NotebookNode) -> Visit:
        file = tmp_path / "page.html"
        file.write_text(HTMLExporter().from_notebook_node(notebook)[0], encoding="utf-8")
        visit = Visit(context.new_page())
        visit.page.goto(file.as_uri())
        return visit

    yield opened
    context.close()


def stored_outputs(notebook: NotebookNode) -> list[NotebookNode]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def loaded_width(image: Locator) -> int:
    """The picture's own width in pixels; 0 unless it was decoded."""
    return int(image.evaluate("image => image.complete ? image.naturalWidth : 0"))


def test_quickstart_is_whole_without_a_network(visit: Callable[[NotebookNode], Visit]) -> None:
    notebook = nbformat.read(QUICKSTART, as_version=4)
    stored = stored_outputs(notebook)
    pictures = [o.data for o in stored if "<figure" in o.get("data", {}).get("text/html", "")]
    tables = [o.text for o in stored if o.output_type == "stream" and "speed-up" in o.text]
    assert pictures and tables, "the notebook is stored without its outputs"

    seen = visit(notebook)
    figures = seen.page.locator("figure").all()
    assert len(figures) == len(pictures)
    for figure, picture in zip(figures, pictures, strict=True):
        image, caption = figure.locator("img"), figure.locator("figcaption")
        alt = image.get_attribute("alt")
        assert alt and alt.strip() and alt == picture["text/plain"]
        assert image.is_visible() and loaded_width(image) > 0
        assert caption.is_visible() and caption.inner_text().strip()
    texts = seen.page.locator(".jp-OutputArea-output pre:visible").all_inner_texts()
    for table in tables:
        assert any(table.strip() == text.strip() for text in texts), table
    assert seen.errors.count() == 0
    assert seen.faults == []


def test_faults_of_a_page_are_seen(visit: Callable[[NotebookNode], Visit]) -> None:
    """The control: on a broken page, each check above finds what it looks for."""
    broken = (
        '<img alt="broken" src="data:image/png;base64,AAAA"><script src="https://example.org/a.js"></script>'
        "<script>console.error('logged'); throw new Error('thrown')</script>"
    )
    outputs = [
        new_output("display_data", {"text/html": broken}),
        new_output("error", ename="ValueError", evalue="no", traceback=["ValueError: no"]),
    ]
    seen = visit(new_notebook(cells=[new_code_cell("1", outputs=outputs)]))
    assert seen.errors.count() == 1
    assert loaded_width(seen.page.get_by_alt_text("broken")) == 0
    found = "\n".join(seen.faults)
    for fault in ("network: https://example.org/a.js", "console: logged", "script: thrown", "ERR_"):
        assert fault in found
