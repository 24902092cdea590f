"""The card of a drafter: what it was trained on, how, where, and how well it does. For machines and people.

`card.json` holds the facts, README.md says them in words. This file measures nothing.
"""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from ..files import write_json, write_text
from .corpus import load_corpus


def versions() -> dict[str, str]:
    """Versions of the libraries that results depend on."""
    return {"torch": torch.__version__, "transformers": transformers.__version__}


@dataclass(frozen=True)
class CorpusFile:
    """One file of training text: its name, rows and tokens read, and the SHA-256 of the file."""

    name: str
    rows: int
    tokens: int
    sha256: str


@dataclass(frozen=True)
class Card:
    """Everything a drafter's card says. `seconds` of training; `held_out` losses in nats, at random anchors.

    Each of the `processes` had a device of its own and took the recipe's rows a step of its own.
    `tau`, mean tokens a round by method, is what decoding measured: it is filled in after training.
    """

    target: str
    kind: str
    parameters: int
    layout: dict[str, Any]
    data: list[CorpusFile]
    held_out_rows: int
    recipe: dict[str, Any]
    seconds: float
    device: str
    held_out: dict[str, float]
    processes: int = 1
    tau: dict[str, float] = field(default_factory=dict)
    software: dict[str, str] = field(default_factory=versions)


def describe_file(path: Path, vocab_size: int) -> CorpusFile:
    """Counts and hash of a corpus file. Raises InputError if it is none."""
    corpus = load_corpus([path], vocab_size)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return CorpusFile(path.name, len(corpus), int(corpus.length.sum()), digest)


def device_name(device: torch.device) -> str:
    """The device in words, e.g. `NVIDIA H200` or `CPU (x86_64, 2 cores)`."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type.upper()} ({platform.machine()}, {os.cpu_count()} cores)"


def write_card(folder: Path, card: Card) -> None:
    """Write card.json and README.md into a drafter's folder."""
    write_json(folder / "card.json", asdict(card))
    write_text(folder / "README.md", render(card))


def render(card: Card) -> str:
    """README.md: the same facts in words and tables."""
    rows, tokens = sum(file.rows for file in card.data), sum(file.tokens for file in card.data)
    name = {"domino": "Domino", "dflash": "DFlash"}[card.kind]
    sections = [
        f"# {name} drafter for {card.target}\n",
        f"Drafts blocks of {card.layout['block_size']} slots for `{card.target}` and is of no use without it: it"
        " borrows the target's embedding and output projection. Output decoded with it is the target's own; the"
        f" drafter only decides how fast it comes. {card.parameters / 1e6:.1f} M parameters, bfloat16, in the"
        " published checkpoint format.\n",
        table("Layout", card.layout),
        f"## Data\n\nText the target wrote itself: {rows:,} rows, {tokens:,} tokens, of which {card.held_out_rows:,}"
        " rows, chosen by a hash of their text, were never trained on.\n",
        *[f"- `{file.name}`: {file.rows:,} rows, SHA-256 `{file.sha256}`" for file in card.data],
        "",
        table("Recipe", card.recipe),
        f"Trained for {card.seconds:,.0f} s on {_devices(card)}"
        f" ({', '.join(f'{name} {version}' for name, version in card.software.items())}).\n",
        table("On held-out text", card.held_out),
        "Losses are in nats a token. `tau` here is 1 + the accepted length at random places of the text, which"
        " flatters: decoding meets hard places more often.\n",
    ]
    if card.tau:
        sections.append(table("Tokens a round when decoding", card.tau))
    return "\n".join(sections)


def _devices(card: Card) -> str:
    if card.processes == 1:
        return card.device
    return f"{card.device}, {card.processes} processes of {card.recipe['rows']} rows a step each"


def table(title: str, values: dict[str, Any]) -> str:
    """A section of two columns in Markdown."""
    lines = [f"| {key} | {_shown(value)} |" for key, value in values.items()]
    return "\n".join([f"## {title}\n", "| | |", "|---|---|", *lines, ""])


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
