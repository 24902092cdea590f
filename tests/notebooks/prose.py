"""House rules for texts in Markdown: what each finds is a fault. It knows neither notebooks nor files' names."""

import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

FENCED, INLINE = re.compile(r"^\s*```.*?^\s*```", re.DOTALL | re.MULTILINE), re.compile(r"`[^`\n]+`")
LINK, SOURCE = re.compile(r"\]\(([^)\s]+)\)"), re.compile(r"\b(?:href|src)=\"([^\"]*)\"")
EXTERNAL = re.compile(r"https://(?:[a-z0-9-]+\.)+[a-z]{2,}(?:/[^\s<>\"]*)?")
HEADING = re.compile(r"^(#{1,6}) (.+)$", re.MULTILINE)
SECTION = re.compile(r"^## (\d+) · ", re.MULTILINE)
DOUBLED = re.compile(r"\b([a-z]+)\s+\1\b(?![-'])", re.IGNORECASE)
LEFT_OVER = re.compile(r"\b(?:TODO|FIXME|XXX|TBD)\b")
FORMULA = re.compile(r"\$(?=\S)[^$]+(?<=\S)\$(?!\d)")


class Images(HTMLParser):
    """The alt texts of all images; None where there is none."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.alts: list[str | None] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            self.alts.append(dict(attrs).get("alt"))


def without_code(text: str) -> str:
    """The text with a backquote in the place of each piece of code."""
    return INLINE.sub("`", FENCED.sub("`", text))


def links(text: str) -> list[str]:
    """Where links and pictures lead, in Markdown or HTML."""
    plain = without_code(text)
    return LINK.findall(plain) + SOURCE.findall(plain)


def broken_links(text: str, folder: Path) -> list[str]:
    """Relative ones that are no file or folder as seen from `folder`, and others that are not well-formed https."""
    relative = [link for link in links(text) if not re.match(r"[a-z]+:", link, re.IGNORECASE)]
    external = [link for link in links(text) if link not in relative]
    missing = [link for link in relative if not link.startswith("#") and not (folder / link.partition("#")[0]).exists()]
    return missing + [link for link in external if not EXTERNAL.fullmatch(link)]


def pictures_without_alt(text: str) -> int:
    """How many pictures a reader who doesn't see them would miss."""
    plain = without_code(text)
    alts = [*Images(plain).alts, *re.findall(r"!\[([^\]]*)\]\(", plain)]
    return sum(not (alt and alt.strip()) for alt in alts)


def disordered_headings(text: str) -> list[str]:
    """A first one that is not the title, a second title, one more than a level below the last, a number left out."""
    found = HEADING.findall(FENCED.sub("`", text))
    wrong = [title for marks, title in found[:1] if len(marks) != 1]
    wrong += [title for marks, title in found[1:] if len(marks) == 1]
    wrong += [title for (above, _), (marks, title) in pairwise(found) if len(marks) > len(above) + 1]
    numbers = [int(number) for number in SECTION.findall(text)]
    return wrong + [f"section {number}" for place, number in enumerate(numbers, start=1) if number != place]


def slips(text: str) -> list[str]:
    """Words that stand twice, marks of what is left to do, and formulas, which the pages can't set."""
    plain = LINK.sub("]", without_code(text))
    doubled = [match[0] for match in DOUBLED.finditer(plain)]
    return doubled + LEFT_OVER.findall(plain) + [match[0] for match in FORMULA.finditer(plain)]
