"""The theatre in JupyterLab: live with a kernel, and as an untrusted notebook that somebody has cloned."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from hand_trace import hand_trace
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook, new_output
from playwright.sync_api import Browser, Locator, Page, expect

from dominotree_lite.trace import Trace
from dominotree_lite.viz.theatre import TreeTheatre

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]
SECONDS = 120  # for what waits on a server or a kernel of a busy machine; nothing is judged by it
SHOW = """\
from dominotree_lite.viz.theatre import TreeTheatre
from traced import toy_drafter, toy_target

theatre = TreeTheatre.from_trace("trace.json")
theatre._loads = {"toy": lambda: (toy_target(), toy_drafter())}
theatre.models = ["toy"]
display(theatre.twin())
theatre"""
TELL = """\
print("TOLD", theatre.round, theatre.budget, theatre.step, theatre.selected.get("node"), theatre.trace["target"])"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def stored_notebook() -> NotebookNode:
    """As a repository holds it: the twin's picture beside a widget whose state is not stored."""
    twin = TreeTheatre(Trace.from_json(hand_trace(6, 2))).twin()._repr_mimebundle_()
    widget = {"application/vnd.jupyter.widget-view+json": {"model_id": "0" * 32, "version_major": 2},
              "text/plain": "TreeTheatre()"}  # fmt: skip
    outputs = [new_output("display_data", twin), new_output("execute_result", widget, execution_count=1)]
    return new_notebook(cells=[new_code_cell(SHOW, outputs=outputs, execution_count=1)])


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of its own, with settings of its own, that asks for no news. Yields its address."""
    home = tmp_path_factory.mktemp("lab")
    work, settings = home / "work", home / "settings" / "@jupyterlab" / "apputils-extension"
    work.mkdir()
    settings.mkdir(parents=True)
    quiet = {"fetchNews": "false", "checkForUpdates": False}
    (settings / "notification.jupyterlab-settings").write_text(json.dumps(quiet))
    (work / "trace.json").write_text(json.dumps(hand_trace(6, 2)))
    live = new_notebook(cells=[new_code_cell(SHOW), new_code_cell(TELL)])
    live.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(live, work / "live.ipynb")
    nbformat.write(stored_notebook(), work / "stored.ipynb")
    port = free_port()
    paths = [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "HOME": str(home), "JUPYTER_CONFIG_DIR": str(home / "config"), "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"), "JUPYTERLAB_WORKSPACES_DIR": str(home / "spaces"),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }  # fmt: skip
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}", "--ip=127.0.0.1",
               "--IdentityProvider.token=", "--ServerApp.port_retries=0", f"--ServerApp.root_dir={work}"]  # fmt: skip
    with (home / "log").open("w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        _wait_for(f"http://127.0.0.1:{port}/api/status", server, home / "log")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(30)


def _wait_for(address: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and server.poll() is None:
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return
        except OSError:
            time.sleep(0.5)
    pytest.fail(f"JupyterLab did not start:\n{log.read_text()[-2000:]}")


def opened(browser: Browser, lab: str, name: str) -> Page:
    page = browser.new_page(viewport={"width": 1500, "height": 2400})
    page.set_default_timeout(SECONDS * 1000)
    page.goto(f"{lab}/lab/tree/{name}")
    page.locator(".jp-Notebook .jp-Cell").first.wait_for()
    return page


def run_cell(page: Page, number: int) -> Locator:
    """Run one cell as a reader does, and return its output area."""
    cell = page.locator(".jp-CodeCell").nth(number)
    cell.locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    expect(cell.locator(".jp-InputPrompt")).to_have_text(re.compile(r"\[\d+\]:"), timeout=SECONDS * 1000)
    return cell.locator(".jp-OutputArea-output")


def told(page: Page) -> list[str]:
    output = run_cell(page, 1)
    text = output.filter(has_text="TOLD").last.inner_text()
    return text.split("TOLD ")[1].split(maxsplit=4)


def test_it_is_live_and_python_reads_what_was_chosen(browser: Browser, lab: str) -> None:
    page = opened(browser, lab, "live.ipynb")
    page.locator("[data-status=idle]").first.wait_for(state="attached")
    time.sleep(1.5)  # the kernel's dialog would come now
    run_cell(page, 0)
    stage = page.locator(".dt-theatre")
    stage.locator("[role=treeitem]").first.wait_for()
    row = hand_trace(6, 2)["prompts"][0]["rounds"]
    assert told(page)[:4] == ["0", "6", "-1", "None"]

    stage.get_by_label("Budget", exact=True).press("ArrowLeft")  # by keyboard
    stage.get_by_label("Round", exact=True).press("ArrowRight")  # scrub
    stage.get_by_role("button", name="Step back").click()  # step
    tree = row[1]["trees"]["marginal"]["8"]["nodes"]
    stage.locator(f".dt-panel[data-method=marginal] [data-node='{tree[2]}']").click()
    assert told(page)[:4] == ["1", "5", "4", str(tree[2])]

    stage.get_by_label("Prompt", exact=True).fill("Hi there")
    stage.get_by_label("New tokens", exact=True).fill("24")
    stage.get_by_role("button", name="Run", exact=True).click()
    expect(stage.locator(".dt-kernel [role=status]")).to_have_text(re.compile(r"tokens in \d+ rounds"), timeout=90_000)
    assert stage.locator(".dt-asked").text_content() == "Hi there"
    assert told(page)[4] != "by hand"
    page.close()


def test_a_cloned_notebook_shows_the_twin_before_anything_is_run(browser: Browser, lab: str) -> None:
    page = opened(browser, lab, "stored.ipynb")
    picture = page.locator(".jp-OutputArea-output figure img")
    picture.wait_for()
    assert picture.evaluate("image => image.complete && image.naturalWidth") > 0
    assert "nodes" in (picture.get_attribute("alt") or "")
    assert page.locator(".dt-theatre").count() == 0
    expect(page.locator(".jp-OutputArea-output").last).not_to_contain_text("Error")
    page.close()
