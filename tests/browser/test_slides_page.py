"""A deck in a browser: a slide fills the screen, keys go on and back, and nothing is asked of the network."""

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_markdown_cell, new_notebook
from playwright.sync_api import Browser, Page

from dominotree_lite.viz.slides import build_slides

NAMES = ("One", "Two", "Three")


@pytest.fixture
def deck(tmp_path: Path) -> Path:
    (tmp_path / "notebooks").mkdir()
    cells = [new_markdown_cell(f"# {name}\n\ntext") for name in NAMES]
    nbformat.write(new_notebook(cells=cells), tmp_path / "notebooks" / "01_one.ipynb")
    return build_slides(tmp_path / "notebooks", tmp_path / "slides")[0]


def on_screen(page: Page) -> list[str]:
    """The headings within the window."""
    height = page.evaluate("window.innerHeight")
    boxes = {name: page.get_by_role("heading", name=name).bounding_box() for name in NAMES}
    return [name for name, box in boxes.items() if box and 0 <= box["y"] < height]


def test_keys_go_through_a_deck(browser: Browser, deck: Path) -> None:
    context = browser.new_context()
    asked: list[str] = []
    page = context.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.goto(deck.as_uri())
    seen = [on_screen(page)]
    for key in ("ArrowRight", "PageDown", "ArrowRight", "ArrowLeft", "PageUp", "PageUp"):
        page.keyboard.press(key)
        seen.append(on_screen(page))
    assert seen == [["One"], ["Two"], ["Three"], ["Three"], ["Two"], ["One"], ["One"]]
    assert [url for url in asked if not url.startswith("file:")] == []
    context.close()
