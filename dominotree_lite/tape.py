"""A scorer's answers, written down: what it said on each path, to be asked again without the model.

A tape is a `Scorer` itself, so every builder runs on it. It knows paths and numbers; it does not know trees or
files. The same class holds numbers made up by hand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .errors import InputError
from .scoring import Children, Scorer

Path = tuple[int, ...]
DIGITS = 6  # after the point, of every log-probability, while recording too: played back it gives the same trees


@dataclass(frozen=True)
class Answer:
    """The children of one path, best first: tokens, and natural logs of their probabilities after that path."""

    tokens: list[int]
    log_probs: list[float]


@dataclass
class Tape:
    """Answers by path (the anchor left out). With `source` it asks that scorer once a path, and remembers.

    Raises InputError when it is asked for a path that is not on it and there is no source.
    """

    horizon: int
    answers: dict[Path, Answer] = field(default_factory=dict)
    source: Scorer | None = None

    def __post_init__(self) -> None:
        self._paths: list[Path] = [()]
        self._numbers: dict[Path, int] = {(): 0}
        self._states = [] if self.source is None else [self.source.root()]

    @classmethod
    def over(cls, source: Scorer) -> Tape:
        """An empty tape that records this scorer."""
        return cls(source.horizon, {}, source)

    @classmethod
    def by_hand(cls, law: Mapping[Path, Mapping[int, float]]) -> Tape:
        """From probabilities: path -> child -> its probability after that path.

        Every path above the deepest children needs an entry. Raises InputError for a law without the root's.
        """
        if () not in law:
            raise InputError("the law has no children for the root: give an entry for the empty path ()")
        answers = {}
        for path, children in law.items():
            ranked = sorted(children, key=lambda token: (-children[token], token))
            answers[path] = Answer(ranked, [math.log(children[token]) for token in ranked])
        return cls(max(map(len, law)) + 1, answers)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Tape:
        """The tape that `to_json` wrote, without a source."""
        return cls(record["horizon"], {tuple(p): Answer(tokens, logs) for p, tokens, logs in record["answers"]})

    def to_json(self) -> dict[str, Any]:
        """All answers so far, in plain lists."""
        rows = [[list(path), answer.tokens, answer.log_probs] for path, answer in self.answers.items()]
        return {"horizon": self.horizon, "answers": rows}

    # --- the scorer ---

    def root(self) -> Tensor:
        return torch.zeros(1, 1, dtype=torch.int64)

    def children(self, depth: int, states: Tensor) -> Children:
        numbers = states[:, 0].tolist()
        missing = [n for n in dict.fromkeys(numbers) if self._paths[n] not in self.answers]
        self._ask(depth, missing)
        answers = [self.answers[self._paths[n]] for n in numbers]
        width = max((len(answer.tokens) for answer in answers), default=0)
        tokens = [answer.tokens + [0] * (width - len(answer.tokens)) for answer in answers]
        logs = [answer.log_probs + [-math.inf] * (width - len(answer.tokens)) for answer in answers]
        shape = (len(answers), width)
        return Children(
            torch.tensor(tokens, dtype=torch.int64).reshape(shape),
            torch.tensor(logs, dtype=torch.float64).reshape(shape),
        )

    def advance(self, states: Tensor, tokens: Tensor) -> Tensor:
        numbers = [
            self._number((*self._paths[n], token))
            for n, token in zip(states[:, 0].tolist(), tokens.tolist(), strict=True)
        ]
        return torch.tensor(numbers, dtype=torch.int64).reshape(-1, 1)

    def _number(self, path: Path) -> int:
        if path not in self._numbers:
            self._numbers[path] = len(self._paths)
            self._paths.append(path)
            if self.source is not None:
                above = self._states[self._numbers[path[:-1]]]
                token = torch.tensor([path[-1]], device=above.device)
                self._states.append(self.source.advance(above, token))
        return self._numbers[path]

    def _ask(self, depth: int, missing: Sequence[int]) -> None:
        if not missing:
            return
        if self.source is None:
            raise InputError(f"the tape holds no children of the path {list(self._paths[missing[0]])}: record it again")
        found = self.source.children(depth, torch.cat([self._states[n] for n in missing]))
        for n, tokens, logs in zip(missing, found.tokens.tolist(), found.log_probs.tolist(), strict=True):
            kept = sum(log_prob > -math.inf for log_prob in logs)
            self.answers[self._paths[n]] = Answer(tokens[:kept], [round(x, DIGITS) for x in logs[:kept]])
