"""The site is complete, its links lead somewhere, and it opens in a browser without a network."""

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
from hand_trace import hand_trace

from dominotree_lite.errors import InputError
from dominotree_lite.viz.site import build_site, publish

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABh6FO1AAAAABJRU5ErkJggg=="
)


class Loads(HTMLParser):
    """What a page loads by itself (scripts, styles, pictures), and where its links lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.scripts = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.scripts += tag == "script"
        if tag in ("script", "img", "iframe", "source", "link"):
            self.loaded += [value[:60] for key in ("src", "href") if (value := named.get(key)) is not None]
        elif tag == "a" and named.get("href"):
            self.links.append(str(named["href"]))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "notebooks"
    (folder / "solutions").mkdir(parents=True)
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "dot.png").write_bytes(PIXEL)
    first = [
        nbformat.v4.new_markdown_cell("# One\n\n[next](02_two.ipynb#part), [paper](https://arxiv.org/abs/1)"),
        nbformat.v4.new_markdown_cell(
            "![A dot](../figures/dot.png) ![A dot](../../figures/dot.png)\n\n```mermaid\ngraph TD\n```"
        ),
        nbformat.v4.new_code_cell("1 + 1", outputs=[nbformat.v4.new_output("stream", text="<b>2</b>\n")]),
    ]
    for name, cells in {"01_one": first, "02_two": [], "solutions/01_one": first[1:2]}.items():
        nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / f"{name}.ipynb")
    (folder / "README.md").write_text("# Map\n\n[One](01_one.ipynb) ![A dot](../figures/dot.png)\n")
    return folder


def test_pages_load_nothing_and_lead_to_one_another(source: Path, tmp_path: Path) -> None:
    pages = build_site(source, tmp_path / "site")
    names = [str(page.relative_to(tmp_path / "site")) for page in pages]
    assert names == ["01_one.html", "02_two.html", "solutions/01_one.html", "index.html"]
    for page in pages:
        found = Loads(page.read_text(encoding="utf-8"))
        assert found.scripts == 0
        assert all(url.startswith("data:") or (page.parent / url).is_file() for url in found.loaded)
        local = [link.split("#")[0] for link in found.links if not re.match(r"[a-z]+:", link)]
        assert all((page.parent / link).exists() for link in local if link)
    one = Loads(pages[0].read_text(encoding="utf-8"))
    assert "02_two.html#part" in one.links and "https://arxiv.org/abs/1" in one.links
    assert "figures/dot.png" in one.loaded and (tmp_path / "site" / "figures" / "dot.png").read_bytes() == PIXEL
    assert 'alt="A dot"' in pages[0].read_text(encoding="utf-8")
    assert "01_one.html" in Loads(pages[-1].read_text(encoding="utf-8")).links


def test_the_theatre_stands_in_place_of_a_widget(source: Path, tmp_path: Path) -> None:
    (tmp_path / "data" / "traces").mkdir(parents=True)
    (tmp_path / "data" / "traces" / "theatre.json").write_text(json.dumps(hand_trace(4, 1)))
    widget = {"application/vnd.jupyter.widget-view+json": {"model_id": "0" * 32}, "text/plain": "only a line"}
    cell = nbformat.v4.new_code_cell("theatre", outputs=[nbformat.v4.new_output("display_data", widget)])
    for name in ("03_three", "solutions/03_three"):
        nbformat.write(nbformat.v4.new_notebook(cells=[cell]), source / f"{name}.ipynb")
    pages = {page.stem + page.parent.name: page for page in build_site(source, tmp_path / "site")}
    for page in (pages["03_threesite"], pages["03_threesolutions"]):
        text = page.read_text(encoding="utf-8")
        (frame,) = [url for url in Loads(text).loaded if url.endswith("theatre.html")]
        assert "dominotree-trace" in (page.parent / frame).read_text(encoding="utf-8")
        assert "only a line" not in text


def test_output_text_is_shown_as_it_is(source: Path, tmp_path: Path) -> None:
    page = build_site(source, tmp_path / "site")[0].read_text(encoding="utf-8")
    assert "&lt;b&gt;2&lt;/b&gt;" in page


def test_the_command_replaces_an_older_site(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "site"
    (site / "gone").mkdir(parents=True)
    assert publish([str(source), str(site)], build_site) == 0
    assert capsys.readouterr().out.strip() == str(site / "index.html") and not (site / "gone").exists()


def test_no_notebooks_is_one_line_and_the_old_site_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("old")
    assert publish([str(tmp_path / "nothing"), str(tmp_path / "site")], build_site) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert (tmp_path / "site" / "index.html").read_text() == "old"
    with pytest.raises(InputError):
        build_site(tmp_path / "nothing", tmp_path / "x")
    assert publish([], build_site) == 2
