"""How every picture looks, is stored and is shown. It knows no trees and no results.

Categories have the colours of Okabe and Ito, probabilities those of viridis; neither ever carries a meaning
alone. All text is set in the DejaVu Sans that matplotlib brings, so that a picture has the same bytes
everywhere.
"""

from __future__ import annotations

import base64
import html
import io
import math
import unicodedata
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.style
import numpy as np
from matplotlib.colors import Colormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.ft2font import FT2Font
from matplotlib.textpath import TextToPath
from PIL import Image

from ..errors import InputError

OKABE_ITO = {
    "black": "#000000",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "green": "#009E73",
    "yellow": "#F0E442",
    "blue": "#0072B2",
    "vermillion": "#D55E00",
    "purple": "#CC79A7",
}
INK, FAINT, PAPER = "#222222", "#595959", "#FFFFFF"  # text, lesser text (7:1 on paper), background
TEXT_SIZE, TITLE_SIZE = 9.0, 11.0  # points; nothing is smaller
PNG_DPI, PNG_COLOURS = 144, 256
_SETTINGS: dict[str, Any] = {"svg.hashsalt": "dominotree", "svg.fonttype": "path", "text.usetex": False}
_FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
_REGULAR, _BOLD = _FONTS / "DejaVuSans.ttf", _FONTS / "DejaVuSans-Bold.ttf"


def context() -> AbstractContextManager[None]:
    """The house style, whatever the user's own settings are; they are back on leaving."""
    return matplotlib.style.context(["default", _SETTINGS])


def font(size: float = TEXT_SIZE, bold: bool = False) -> FontProperties:
    """The shipped font at this size in points."""
    return FontProperties(fname=str(_BOLD if bold else _REGULAR), size=size)


@cache
def text_width(text: str, size: float = TEXT_SIZE, bold: bool = False) -> float:
    """Width of one line, in points."""
    return float(TextToPath().get_text_width_height_descent(text, font(size, bold), ismath=False)[0])


# --- Tokens as labels ----------------------------------------------------------------------------------------

_VISIBLE = {" ": "␣", "\n": "↵", "\t": "⇥"}
_NOT_IN_FONT, _CARRIER = "□", "◌"


@cache
def _glyphs() -> frozenset[int]:
    """Code points that both weights of the font can draw."""
    return frozenset.intersection(*(frozenset(FT2Font(str(path)).get_charmap()) for path in (_REGULAR, _BOLD)))


def literal(text: str, limit: int = 12) -> str:
    """A token's text as a label: no character is left out, acts on the line, or lacks a glyph.

    Space, line feed and tab become ␣ ↵ ⇥, other invisible characters <U+...>, what the font lacks □; a mark
    that would join what stands before it gets the carrier ◌. More than `limit` characters end in an ellipsis.
    """
    shown = [_drawable(c) for c in text[: limit + 1]]
    if shown and unicodedata.combining(text[0]):
        shown.insert(0, _CARRIER)
    drawn = "".join(shown)
    return drawn if len(text) <= limit and len(drawn) <= 2 * limit else drawn[: limit - 1] + "…"


def _drawable(c: str) -> str:
    if c in _VISIBLE:
        return _VISIBLE[c]
    if unicodedata.category(c)[0] in "CZ":
        return f"<U+{ord(c):04X}>"
    return c if ord(c) in _glyphs() else _NOT_IN_FONT


# --- Probabilities as colours --------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProbabilityScale:
    """Log-probabilities as colours: dark for 1, lighter by the decade, the lightest for 10**-decades and less."""

    decades: int

    @classmethod
    def of(cls, log_probs: Sequence[float]) -> ProbabilityScale:
        """The scale that reaches down to the smallest of these natural logs, over 1 to 6 decades."""
        lowest = max(min(log_probs, default=0.0), -100.0) / math.log(10)
        return cls(min(max(math.ceil(-lowest - 1e-9), 1), 6))

    @property
    def colours(self) -> Colormap:
        """viridis, turned round, without the end that is too pale on white."""
        return ListedColormap(matplotlib.colormaps["viridis_r"](np.linspace(0.3, 1.0, 64)), "probability")

    def position(self, log_prob: float) -> float:
        """0 at the light end, 1 at the dark one."""
        return min(max(1 + log_prob / math.log(10) / self.decades, 0.0), 1.0)

    def colour(self, log_prob: float) -> tuple[float, float, float, float]:
        """RGBA in 0..1."""
        r, g, b, a = self.colours(self.position(log_prob))
        return r, g, b, a

    def ink(self, log_prob: float) -> str:
        """Black or white, whichever is read more easily on the colour."""
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in self.colour(log_prob)[:3]]
        luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        return OKABE_ITO["black"] if luminance > 0.179 else PAPER  # there, both have a contrast of 4.6


# --- Storing and showing -------------------------------------------------------------------------------------


def save(fig: Figure, path: str | Path) -> None:
    """Write an SVG or a PNG, by the name's ending; the same figure gives the same bytes in any process.

    Raises InputError for another ending and where the file can't be written.
    """
    path = Path(path)
    if path.suffix not in (".svg", ".png"):
        raise InputError(f"{path}: a picture's name ends in .svg or .png")
    content = svg(fig) if path.suffix == ".svg" else _png(fig)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise InputError(f"{path}: can't be written ({error.strerror}); choose another file") from error


def svg(fig: Figure) -> bytes:
    """The picture as SVG: the same bytes in any process."""
    buffer = io.BytesIO()
    with context():
        fig.savefig(buffer, format="svg", facecolor=PAPER, metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _png(fig: Figure, dpi: int = PNG_DPI, colours: int = PNG_COLOURS) -> bytes:
    """A palette of a few colours makes a picture a third as large; drawings need no more."""
    buffer = io.BytesIO()
    with context():
        fig.savefig(buffer, format="png", dpi=dpi, facecolor=PAPER, metadata={"Software": None})
    image = Image.open(buffer).convert("RGB").quantize(colours, dither=Image.Dither.NONE)
    packed = io.BytesIO()
    image.save(packed, format="png", optimize=True)
    return packed.getvalue()


@dataclass(frozen=True)
class Picture:
    """A figure as a notebook shows it: the last expression of a cell, or an argument of `display`."""

    png: bytes
    alt: str
    caption: str
    width: int  # CSS pixels

    def html(self) -> str:
        """A figure element that needs no other file. Its alt text outlives a notebook's export to HTML."""
        data = base64.b64encode(self.png).decode("ascii")
        image = (
            f'<img alt="{html.escape(self.alt)}" src="data:image/png;base64,{data}" width="{self.width}" '
            'style="max-width:100%;height:auto">'
        )
        caption = f"<figcaption>{html.escape(self.caption)}</figcaption>" if self.caption else ""
        return f"<figure>{image}{caption}</figure>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """What Jupyter asks for: HTML where it is shown, the bare PNG where HTML is not, the text elsewhere."""
        png = base64.b64encode(self.png).decode("ascii")
        return {"text/html": self.html(), "image/png": png, "text/plain": self.alt}


def show(fig: Figure, alt: str, caption: str = "", dpi: int = PNG_DPI, colours: int = PNG_COLOURS) -> Picture:
    """The figure with a text that says what it shows, for those who don't see it.

    Fewer dots an inch and fewer colours make a smaller file. Raises InputError without such a text.
    """
    if not alt.strip():
        raise InputError("a picture needs an alt text: say in a sentence or two what it shows")
    return Picture(_png(fig, dpi, colours), alt, caption, round(fig.get_figwidth() * 96))
