"""Questions for a target to answer, in six domains of equal shares, made up by filling slots at random.

They resemble what people ask of a model in public benchmarks (arithmetic stories, contest mathematics, Python
functions, instructions, chat) and copy none of them. The texts are in questions.txt, the programming tasks in
exercises.py. This file knows neither models nor tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from .tasks import exercise

BOXED = "\nPlease reason step by step, and put your final answer within \\boxed{}."
SOLVE = "Write a solution to the following problem and make sure that it passes the tests:\n"
PASS = "Your code should pass these tests:"
FORMS = (BOXED, SOLVE, PASS)  # wording that a whole domain shares: it says nothing about where a question is from
BOXED_SHARE = 0.75  # of the mathematical questions
WISH_SHARE = 0.3  # of the short instructions: those that say how to answer
OPENING_SHARE = (0.1, 0.6)  # how much of a question's words its opening words are

_SLOT = re.compile(r"<([a-z]+)(\d*)(?::(\d+)-(\d+))?>")
_TEXTS = Path(__file__).with_suffix(".txt")


def question(domain: str, rng: np.random.Generator) -> str:
    """A whole question of the domain, one of `DOMAINS`."""
    return DOMAINS[domain](rng)


def opening(domain: str, rng: np.random.Generator) -> str:
    """The first words of a question, for the target to go on from: two or more, but never all of them.

    The wording that all questions of a domain begin with is left in place and not counted.
    """
    text = question(domain, rng).removesuffix(BOXED)
    skip = len(SOLVE) if text.startswith(SOLVE) else 0
    ends = [match.end() for match in re.finditer(r"\S+", text[skip:])]
    count = max(2, round(len(ends) * rng.uniform(*OPENING_SHARE)))
    return text[: skip + ends[min(count, max(len(ends) - 1, 1)) - 1]]


def fill(template: str, rng: np.random.Generator) -> str:
    """The template with every slot filled: by an entry of a list, or by a whole number of a range."""
    values: dict[str, str] = {}
    taken: set[str] = set()

    def value(match: re.Match[str]) -> str:
        name, number, low, high = match.groups()
        slot = name + number
        if slot not in values:
            if low is not None:
                values[slot] = str(rng.integers(int(low), int(high) + 1))
            else:
                free = [entry for entry in texts()[name] if entry not in taken]
                values[slot] = _pick(free, rng)
                taken.add(values[slot])
        return values[slot]

    while _SLOT.search(template):
        template = _SLOT.sub(value, template)
    return template[0].upper() + template[1:]


@cache
def texts() -> dict[str, tuple[str, ...]]:
    """questions.txt by section."""
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in _TEXTS.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            lines = sections.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            lines += line.replace("¶", "\n").split(" | ")
    return {name: tuple(entries) for name, entries in sections.items()}


def _pick(entries: list[str] | tuple[str, ...], rng: np.random.Generator) -> str:
    return entries[rng.integers(len(entries))]


def _maths(section: str) -> Callable[[np.random.Generator], str]:
    def ask(rng: np.random.Generator) -> str:
        return fill(_pick(texts()[section], rng), rng) + (BOXED if rng.random() < BOXED_SHARE else "")

    return ask


def _prose(section: str) -> Callable[[np.random.Generator], str]:
    def ask(rng: np.random.Generator) -> str:
        template = _pick(texts()[section], rng)
        if "\n" not in template and rng.random() < WISH_SHARE:
            template += " <wish>"
        return fill(template, rng)

    return ask


def _docstring(rng: np.random.Generator) -> str:
    return f"{SOLVE}```python\n{exercise(rng).stub(rng)}\n```"


def _asserts(rng: np.random.Generator) -> str:
    task = exercise(rng)
    verb = _pick(("find", "find", "compute", "get", "return", "determine"), rng)
    kind = _pick(("function", "python function"), rng)
    tests = "\n".join(f"assert {call} == {result}" for call, result in task.examples(rng, 3))
    return f"Write a {kind} to {verb} {task.wanted}. {PASS}\n\n{tests}"


DOMAINS: dict[str, Callable[[np.random.Generator], str]] = {
    "word problems": _maths("word problems"),
    "competition": _maths("competition"),
    "docstring": _docstring,
    "asserts": _asserts,
    "instructions": _prose("instructions"),
    "chat": _prose("chat"),
}
