"""What readers read: links lead somewhere, words are spelt right, and the house rules hold."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from course import LESSONS, NOTEBOOKS, ROOT, markdown_of, read
from prose import broken_links, disordered_headings, links, pictures_without_alt, slips

MAP = ROOT / "notebooks" / "README.md"
PAGES = [*NOTEBOOKS, MAP, *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md"))]

each = pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def text_of(path: Path) -> str:
    return markdown_of(read(path)) if path.suffix == ".ipynb" else path.read_text(encoding="utf-8")


@each
def test_its_links_and_pictures_lead_somewhere(path: Path) -> None:
    assert broken_links(text_of(path), path.parent) == []


@each
def test_its_prose_follows_the_house_rules(path: Path) -> None:
    text = text_of(path)
    assert slips(text) == []
    assert disordered_headings(text) == []
    assert pictures_without_alt(text) == 0


def test_the_map_shows_every_lesson_with_a_picture() -> None:
    """Each has a line of its own, which links to it and shows a figure."""
    lines = MAP.read_text(encoding="utf-8").splitlines()
    for path in LESSONS:
        (line,) = [line for line in lines if f"]({path.name})" in line and "<img" in line]
        assert any(link.startswith("../figures/") for link in links(line)), path.name


def spelling(*paths: Path) -> int:
    """The exit status of the spelling check, as `make check` runs it."""
    program = shutil.which("codespell", path=str(Path(sys.executable).parent)) or "codespell"
    return subprocess.run([program, *map(str, paths)], cwd=ROOT, capture_output=True, check=False).returncode


def test_spelling_is_checked_in_notebooks_too(tmp_path: Path) -> None:
    (checked,) = re.findall(r"codespell (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "notebooks"} <= set(checked.split())
    for name, word in (("right", "the"), ("wrong", "t" + "eh")):
        cells = [nbformat.v4.new_markdown_cell(f"# A tree\n\nHere is {word} tree.")]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / f"{name}.ipynb")
    assert spelling(tmp_path / "right.ipynb") == 0
    assert spelling(tmp_path / "wrong.ipynb") != 0


# --- the rules themselves: each finds what it is there for ----------------------------------------------


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").touch()
    right = "[a](there.md) [b](there.md#part) [c](#part) ![d](there.md) [e](https://arxiv.org/abs/1) `[f](gone.md)`"
    assert broken_links(right + '\n<img src="there.md" alt="x">\n```\n[g](gone.md)\n```\n', tmp_path) == []
    wrong = ["gone.md", "gone.png", "http://arxiv.org", "https://arxiv", "https:/arxiv.org", "ftp://a.org", "../x.md"]
    assert sorted(broken_links("".join(f"[a]({link}) " for link in wrong), tmp_path)) == sorted(wrong)
    assert broken_links('<a href="gone.html">a</a>', tmp_path) == ["gone.html"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("the tree of the tree", []),
        ("it is the\nthe tree", ["the\nthe"]),
        ("The the tree", ["The the"]),
        ("`the the`, and\n```\nthe the\n```\n", []),
        ("TODO: more", ["TODO"]),
        ("a budget of $b$ nodes", ["$b$"]),
        ("it costs $5 or $6", []),
    ],
)
def test_a_slip_is_found(text: str, found: list[str]) -> None:
    assert slips(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("# A\n\n## 1 · B\n\n### C\n\n## 2 · D\n\n## E\n", []),
        ("## A\n", ["A"]),
        ("# A\n\n# B\n", ["B"]),
        ("# A\n\n### B\n", ["B"]),
        ("# A\n\n## 1 · B\n\n## 3 · C\n", ["section 3"]),
        ("# A\n\n```python\n# b\n```\n", []),
    ],
)
def test_a_heading_out_of_order_is_found(text: str, found: list[str]) -> None:
    assert disordered_headings(text) == found


@pytest.mark.parametrize(
    ("text", "missed"),
    [
        ('![a tree](x.png) <img src="x" alt="a">', 0),
        ("![](x.png) and ![b](y.png)", 1),
        ('<img src="x.png">', 1),
        ('<img src="x.png" alt=" ">', 1),
        ("`![](x.png)`", 0),
    ],
)
def test_a_picture_without_alt_text_is_found(text: str, missed: int) -> None:
    assert pictures_without_alt(text) == missed
