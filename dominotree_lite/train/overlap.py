"""Wording that a text shares with prompts it must not have seen: the check that keeps benchmarks out of a corpus.

It does not know how the text was written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ..errors import InputError
from ..prompts import load_prompts
from ..target import Target
from .questions import FORMS

GRAM = 13  # tokens in a row that count as shared wording (as in the GPT-3 report, arXiv 2005.14165, appendix C)

_FORMS = re.compile("|".join(re.escape(" ".join(form.lower().split())) for form in FORMS))


class Overlap:
    """The turns of prompts files, cut into runs of `GRAM` tokens; a shorter turn is one run.

    Compared are lower-case texts with single spaces, without the wording that a whole domain shares. Raises
    InputError where a file can't be read (prompts.py), or there are files and no tokenizer.
    """

    def __init__(self, target: Target, paths: tuple[Path, ...]) -> None:
        self.target = target
        self.files = [path.name for path in paths]
        self._runs: dict[int, set[tuple[int, ...]]] = {}  # by their length
        for prompt in load_prompts(*paths) if paths else []:
            for turn in prompt.turns:
                for piece in self._pieces(turn):
                    size = min(GRAM, len(piece))
                    self._runs.setdefault(size, set()).update(_runs(piece, size))

    def met_in(self, text: str) -> bool:
        """Whether the text has one of the runs in it."""
        if not self._runs:
            return False
        pieces = list(self._pieces(text))
        return any(run in known for size, known in self._runs.items() for piece in pieces for run in _runs(piece, size))

    def _pieces(self, text: str) -> Iterator[tuple[int, ...]]:
        """Token ids of what stands between the shared wordings."""
        tokenizer = self.target.tokenizer
        if tokenizer is None:
            raise InputError(f"{self.target.name} has no tokenizer: it can't be asked to write text")
        for piece in _FORMS.split(" ".join(text.lower().split())):
            if piece.strip():
                yield tuple(tokenizer(" " + piece.strip(), add_special_tokens=False).input_ids)


def _runs(ids: tuple[int, ...], size: int) -> Iterator[tuple[int, ...]]:
    return (ids[i : i + size] for i in range(len(ids) - size + 1))
