"""Small programming tasks put together at random from parts, with examples whose results are computed.

A task is a thing to look at (numbers, a text, the digits of a number, words, pairs, a table), a choice among
its elements, and what to make of them. This file knows neither models nor how a task is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Draw = Callable[[np.random.Generator], Any]
Part = tuple[str, Any]  # words (with {k} for a number), and what they mean


@dataclass(frozen=True)
class Exercise:
    """A function to write: its name, parameter and type, the type it returns, and what is wanted of it in words."""

    name: str
    parameter: str
    accepts: str
    returns: str
    wanted: str
    solve: Callable[[Any], Any]
    draw: Draw

    def examples(self, rng: np.random.Generator, count: int) -> list[Part]:
        """Up to `count` different calls and their results, as source text."""
        inputs = {repr(value): value for value in (self.draw(rng) for _ in range(3 * count))}
        return [(f"{self.name}({text})", repr(self.solve(value))) for text, value in list(inputs.items())[:count]]

    def stub(self, rng: np.random.Generator) -> str:
        """The function with its docstring, to be completed; typed or not, with zero to three examples."""
        typed = rng.random() < 0.5
        head = f"{self.parameter}: {self.accepts}) -> {self.returns}" if typed else f"{self.parameter})"
        imports = "from typing import List, Tuple\n\n\n" if typed and "[" in self.accepts + self.returns else "\n"
        first = (
            f"Return {self.wanted}.",
            f"Given {self.parameter}, return {self.wanted}.",
            f"Write a function that takes {self.parameter} and returns {self.wanted}.",
            f"Your task is to find {self.wanted}.",
        )[rng.integers(4)]
        pattern = (">>> {0}\n    {1}", "{0} == {1}", "{0} ➞ {1}", "For {0} the result should be {1}")[rng.integers(4)]
        examples = [pattern.format(*example) for example in self.examples(rng, int(rng.integers(4)))]
        title = [("", "Examples:", "For example:")[rng.integers(3)]] if examples else []
        lines = [first, *(line for line in title if line), *examples]
        body = "\n    ".join(lines)
        return f'{imports}def {self.name}({head}:\n    """ {body}\n    """'


def exercise(rng: np.random.Generator) -> Exercise:
    """A task of a random family."""
    return FAMILIES[rng.integers(len(FAMILIES))](rng)


def _pick(parts: tuple[Any, ...], rng: np.random.Generator) -> Any:
    return parts[rng.integers(len(parts))]


def _name(words: str, rng: np.random.Generator) -> str:
    """A function's name from the words that say what it does, some of them left out."""
    small = {"the", "of", "in", "a", "that", "are", "is", "with", "and", "by", "than", "an", "or", "from", "as", "its"}
    parts = [part for part in words.lower().replace("-", " ").replace("'", "").split() if part not in small]
    parts = [part for part in parts if part.isidentifier()] or ["result"]
    kept = parts[: int(rng.integers(2, 5))]
    return "_".join((["get", "find", "count", "my"][rng.integers(4)] if len(kept) == 1 else "", *kept)).strip("_")


# --- numbers: which of them, changed how, and what of them ------------------------------------------------

NUMBERS: tuple[Part, ...] = (
    ("numbers", lambda v, k: True),
    ("even numbers", lambda v, k: v % 2 == 0),
    ("odd numbers", lambda v, k: v % 2 == 1),
    ("positive numbers", lambda v, k: v > 0),
    ("negative numbers", lambda v, k: v < 0),
    ("numbers greater than {k}", lambda v, k: v > k),
    ("numbers less than {k}", lambda v, k: v < k),
    ("multiples of {k}", lambda v, k: v % k == 0),
    ("numbers that end in {k}", lambda v, k: abs(v) % 10 == k),
    ("two-digit numbers", lambda v, k: 10 <= abs(v) <= 99),
    ("perfect squares", lambda v, k: v >= 0 and math.isqrt(v) ** 2 == v),
    ("prime numbers", lambda v, k: v > 1 and all(v % d for d in range(2, math.isqrt(v) + 1))),
)
CHANGES: tuple[Part, ...] = (
    ("", lambda v, k: v),
    ("", lambda v, k: v),
    ("squares of the ", lambda v, k: v * v),
    ("absolute values of the ", lambda v, k: abs(v)),
    ("last digits of the ", lambda v, k: abs(v) % 10),
    ("remainders modulo {k} of the ", lambda v, k: v % k),
    ("halves (rounded down) of the ", lambda v, k: v // 2),
    ("digit sums of the ", lambda v, k: sum(map(int, str(abs(v))))),
)
RESULTS: tuple[tuple[str, str, Any], ...] = (
    ("the sum of the {0}", "int", sum),
    ("the product of the {0}", "int", math.prod),
    ("the largest of the {0} (0 if there are none)", "int", lambda vs: max(vs, default=0)),
    ("the smallest of the {0} (0 if there are none)", "int", lambda vs: min(vs, default=0)),
    ("the number of different {0}", "int", lambda vs: len(set(vs))),
    ("a list of the {0} in ascending order", "List[int]", sorted),
    ("a list of the {0} in reverse order", "List[int]", lambda vs: vs[::-1]),
    ("a list of the {0} without duplicates", "List[int]", lambda vs: list(dict.fromkeys(vs))),
    ("the running totals of the {0}", "List[int]", lambda vs: [sum(vs[: i + 1]) for i in range(len(vs))]),
    (
        "the difference between the largest and the smallest of the {0}",
        "int",
        lambda vs: max(vs) - min(vs) if vs else 0,
    ),
    ("whether the {0} are in ascending order", "bool", lambda vs: vs == sorted(vs)),
    ("the most frequent of the {0}, or None", "int", lambda vs: max(vs, key=lambda v: (vs.count(v), -v), default=None)),
)


def _numbers(rng: np.random.Generator) -> Exercise:
    which, keep = _pick(NUMBERS, rng)
    change, apply = _pick(CHANGES, rng)
    result, returns, make = _pick(RESULTS, rng)
    k = int(rng.integers(2, 10))
    words = result.format(change.format(k=k) + which.format(k=k))
    low = 0 if rng.random() < 0.6 else -30
    return Exercise(
        _name(words, rng),
        _pick(("numbers", "nums", "lst", "arr", "values", "data"), rng),
        "List[int]",
        returns,
        f"{words} in a list",
        lambda values: make([apply(v, k) for v in values if keep(v, k)]),
        lambda rng: rng.integers(low, rng.choice([10, 40, 100]), size=rng.integers(3, 9)).tolist(),
    )


def _table(rng: np.random.Generator) -> Exercise:
    part, take = _pick(
        (
            ("rows", lambda t: t),
            ("columns", lambda t: [list(c) for c in zip(*t, strict=True)]),
        ),
        rng,
    )
    result, returns, make = _pick(RESULTS[:8], rng)
    words, k = result.format("numbers"), int(rng.integers(2, 6))
    return Exercise(
        _name(f"{part} {words}", rng),
        _pick(("matrix", "table", "grid", "rows"), rng),
        "List[List[int]]",
        f"List[{returns}]",
        f"a list that holds, for each of the {part} of a matrix, {words}",
        lambda table: [make(list(line)) for line in take(table)],
        lambda rng: rng.integers(0, 10, size=(rng.integers(2, 4), k)).tolist(),
    )


# --- characters, words and digits ------------------------------------------------------------------------------

CHARACTERS: tuple[Part, ...] = (
    ("vowels", lambda c, x: c.lower() in "aeiou"),
    ("consonants", lambda c, x: c.isalpha() and c.lower() not in "aeiou"),
    ("upper-case letters", lambda c, x: c.isupper()),
    ("lower-case letters", lambda c, x: c.islower()),
    ("digits", lambda c, x: c.isdigit()),
    ("spaces", lambda c, x: c == " "),
    ("characters '{x}'", lambda c, x: c == x),
    ("letters that come after '{x}' in the alphabet", lambda c, x: c.isalpha() and c.lower() > x),
)
EDITS: tuple[tuple[str, str, Any], ...] = (
    ("the number of {0} in a string", "int", lambda text, keep: sum(map(keep, text))),
    ("a string without its {0}", "str", lambda text, keep: "".join(c for c in text if not keep(c))),
    ("a string of only the {0} in a string", "str", lambda text, keep: "".join(filter(keep, text))),
    ("a string with its {0} doubled", "str", lambda text, keep: "".join(c * 2 if keep(c) else c for c in text)),
    ("a string with its {0} replaced by '*'", "str", lambda text, keep: "".join("*" if keep(c) else c for c in text)),
    ("a string with its {0} moved to the end", "str", lambda text, keep: "".join(sorted(text, key=keep))),
    ("the index of the first of the {0} in a string, or -1", "int",
     lambda text, keep: next((i for i, c in enumerate(text) if keep(c)), -1)),
    ("whether a string has more {0} than other characters", "bool",
     lambda text, keep: 2 * sum(map(keep, text)) > len(text)),
    ("the positions of the {0} in a string", "List[int]",
     lambda text, keep: [i for i, c in enumerate(text) if keep(c)]),
)  # fmt: skip
VOCABULARY = (
    "Amber river Level stone kayak winter Otter 42 lantern noon Maple 7 engine radar Cloud apple 2024 civic Umbrella"
    " bridge echo violet Tiger orange mirror 15 Harbour little deed Ice silver garden"
).split()


def _phrase(rng: np.random.Generator) -> str:
    return " ".join(rng.choice(VOCABULARY, size=rng.integers(1, 5)).tolist())


def _text(rng: np.random.Generator) -> Exercise:
    which, keep = _pick(CHARACTERS, rng)
    edit, returns, make = _pick(EDITS, rng)
    x = chr(int(rng.integers(ord("a"), ord("u"))))
    words = edit.format(which.format(x=x))
    return Exercise(
        _name(words, rng),
        _pick(("text", "s", "string", "txt"), rng),
        "str",
        returns,
        words,
        lambda text: make(text, lambda c: keep(c, x)),
        _phrase,
    )


WORDS: tuple[Part, ...] = (
    ("words", lambda w, k: True),
    ("words longer than {k} letters", lambda w, k: len(w) > k),
    ("words with exactly {k} letters", lambda w, k: len(w) == k),
    ("words that begin with a vowel", lambda w, k: w[0].lower() in "aeiou"),
    ("words that read the same backwards", lambda w, k: w.lower() == w.lower()[::-1]),
    ("capitalised words", lambda w, k: w[0].isupper()),
    ("numbers", lambda w, k: w.isdigit()),
    ("words without the letter 'e'", lambda w, k: "e" not in w.lower()),
)
PICKS: tuple[tuple[str, str, Any], ...] = (
    ("the number of {0} in a sentence", "int", len),
    ("the {0} of a sentence, sorted by length", "List[str]", lambda ws: sorted(ws, key=len)),
    ("the {0} of a sentence in reverse order, joined by spaces", "str", lambda ws: " ".join(ws[::-1])),
    ("the longest of the {0} in a sentence (the first one of several, '' if there are none)", "str",
     lambda ws: max(ws, key=len, default="")),
    ("a list of the lengths of the {0} in a sentence", "List[int]", lambda ws: [len(w) for w in ws]),
    ("the initials of the {0} in a sentence", "str", lambda ws: "".join(w[0] for w in ws)),
    ("the {0} of a sentence, each of them reversed", "List[str]", lambda ws: [w[::-1] for w in ws]),
    ("a dictionary from each of the {0} in a sentence to its length", "dict", lambda ws: {w: len(w) for w in ws}),
)  # fmt: skip


def _sentence(rng: np.random.Generator) -> Exercise:
    which, keep = _pick(WORDS, rng)
    pick, returns, make = _pick(PICKS, rng)
    k = int(rng.integers(3, 7))
    words = pick.format(which.format(k=k))
    return Exercise(
        _name(words, rng),
        _pick(("sentence", "text", "line", "s"), rng),
        "str",
        returns,
        words,
        lambda text: make([w for w in text.split() if keep(w, k)]),
        _phrase,
    )


def _digits(rng: np.random.Generator) -> Exercise:
    which, keep = _pick((*NUMBERS[:3], NUMBERS[5], NUMBERS[6], NUMBERS[11]), rng)
    result, returns, make = _pick(RESULTS, rng)
    k = int(rng.integers(2, 9))
    words = result.format(which.format(k=k).replace("numbers", "digits"))
    return Exercise(
        _name(words, rng),
        _pick(("n", "number", "num", "x"), rng),
        "int",
        returns,
        f"{words} of a positive integer",
        lambda n: make([v for v in map(int, str(n)) if keep(v, k)]),
        lambda rng: int(rng.integers(1, 10 ** int(rng.integers(2, 8)))),
    )


def _range(rng: np.random.Generator) -> Exercise:
    which, keep = _pick((*NUMBERS[1:3], *NUMBERS[7:]), rng)
    change, apply = _pick(CHANGES, rng)
    result, returns, make = _pick((*RESULTS[:1], *RESULTS[4:7]), rng)
    k = int(rng.integers(2, 9))
    words = result.format(change.format(k=k) + which.format(k=k))
    return Exercise(
        _name(words, rng),
        _pick(("n", "limit", "upper", "m"), rng),
        "int",
        returns,
        f"{words} from 1 to n",
        lambda n: make([apply(v, k) for v in range(1, n + 1) if keep(v, k)]),
        lambda rng: int(rng.integers(1, 40)),
    )


# --- pairs -----------------------------------------------------------------------------------------------------

PAIRS: tuple[tuple[str, str, Any], ...] = (
    ("the list of pairs sorted by {0}", "List[Tuple[str, int]]", lambda ps, key: sorted(ps, key=key)),
    ("the list of pairs sorted by {0}, largest first", "List[Tuple[str, int]]",
     lambda ps, key: sorted(ps, key=key, reverse=True)),
    ("the name in the pair with the largest {0}", "str", lambda ps, key: max(ps, key=key)[0]),
    ("the number in the pair with the smallest {0}", "int", lambda ps, key: min(ps, key=key)[1]),
    ("how many different values {0} takes in a list of pairs", "int", lambda ps, key: len(set(map(key, ps)))),
    ("a dictionary that groups the names of the pairs by {0}", "dict",
     lambda ps, key: {v: [p[0] for p in ps if key(p) == v] for v in sorted(set(map(key, ps)))}),
)  # fmt: skip
KEYS: tuple[Part, ...] = (
    ("their number", lambda p: p[1]),
    ("length of the name", lambda p: len(p[0])),
    ("last digit of the number", lambda p: p[1] % 10),
    ("last letter of the name", lambda p: p[0][-1]),
    ("product of the number and the length of the name", lambda p: p[1] * len(p[0])),
)


def _pairs(rng: np.random.Generator) -> Exercise:
    result, returns, make = _pick(PAIRS, rng)
    key, value = _pick(KEYS, rng)
    names = [word.lower() for word in VOCABULARY if word.isalpha()]
    words = result.format(key)
    return Exercise(
        _name(words, rng),
        _pick(("pairs", "items", "records", "tuples"), rng),
        "List[Tuple[str, int]]",
        returns,
        words,
        lambda pairs: make(pairs, value),
        lambda rng: [(str(rng.choice(names)), int(rng.integers(1, 60))) for _ in range(rng.integers(2, 5))],
    )


FAMILIES: tuple[Callable[[np.random.Generator], Exercise], ...] = (
    _numbers, _numbers, _text, _text, _sentence, _sentence, _digits, _range, _pairs, _table,
)  # fmt: skip
