"""`python tests/browser/screenshot.py` draws figures/theatre.png anew: the shipped trace's page as a browser shows it.

Its bytes depend on the browser and its fonts, so nothing compares them.
"""

import io
import sys
import tempfile
from pathlib import Path

from conftest import executable
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from dominotree_lite.recording import TRACES
from dominotree_lite.viz.theatre import TreeTheatre

FIGURE = Path(__file__).parents[2] / "figures" / "theatre.png"
WIDTH, COLOURS, BUDGET = 1280, 64, 24


def arrange(page: Page) -> None:
    """Point at the deepest node of the conditional tree that the target accepts."""
    panel = page.locator(".dt-panel").last
    accepted = panel.locator("[role=treeitem].dt-accepted")
    accepted.nth(accepted.count() - 1).click()
    page.mouse.move(0, 0)


def main() -> None:
    theatre = TreeTheatre.from_trace(TRACES / "theatre.json", budget=BUDGET)
    rounds = theatre.trace["prompts"][0]["rounds"]
    most = str(theatre.candidates)
    theatre.round = max(range(len(rounds)), key=lambda at: len(rounds[at]["accepted"]["dominotree"][most]))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = theatre.export_html(Path(folder) / "theatre.html")
        browser = playwright.chromium.launch(executable_path=executable(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 900})
        page.goto(file.as_uri())
        page.locator("[role=treeitem]").first.wait_for()
        arrange(page)
        image = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
        browser.close()
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(FIGURE, optimize=True)
    print(FIGURE)


if __name__ == "__main__":
    sys.exit(main())
