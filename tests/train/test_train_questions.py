"""Questions: every template can be filled, slots keep their values, examples of exercises are right."""

import ast
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dominotree_lite.train import questions
from dominotree_lite.train.questions import BOXED, DOMAINS, PASS, SOLVE, fill, opening, question, texts
from dominotree_lite.train.tasks import exercise


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# --- slots ------------------------------------------------------------------------------------------------


def test_a_slot_keeps_its_value_and_numbered_ones_differ() -> None:
    rng = generator()
    for _ in range(200):
        first, again, other, number, same = fill("<name>|<name>|<name2>|<n:3-5>|<n>", rng).split("|")
        assert first == again != other and {first, other} <= set(texts()["name"])
        assert number == same and number in "345"


def test_words_may_have_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "texts", lambda: {"a": ("x<b>",), "b": ("y<n:7-7>",)})
    assert fill("<a> and <b>", generator()) == "Xy7 and y7"


@pytest.mark.parametrize("section", sorted(texts()))
def test_every_entry_can_be_filled(section: str) -> None:
    for entry in texts()[section]:
        for seed in range(3):
            known = fill(entry, generator(seed))
            assert not re.search(r"<[a-z]+\d*(:|>)", known), known
    assert len(set(texts()[section])) == len(texts()[section]) >= 3


# --- domains ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_domain_has_thousands_of_questions_and_is_seeded(domain: str) -> None:
    rng = generator()
    drawn = [question(domain, rng) for _ in range(4000)]
    assert len(set(drawn)) > 2500
    assert max(map(len, drawn)) < 1500
    assert drawn[:20] == [question(domain, rng) for rng in [generator()] for _ in range(20)]


@pytest.mark.parametrize("domain", ["word problems", "competition"])
def test_most_mathematical_questions_ask_for_a_box(domain: str) -> None:
    rng = generator()
    assert 0.5 < np.mean([question(domain, rng).endswith(BOXED) for _ in range(400)]) < 1


@pytest.mark.parametrize("domain", DOMAINS)
def test_openings_are_beginnings_of_questions(domain: str) -> None:
    for seed in range(200):
        whole, words = question(domain, generator(seed)), opening(domain, generator(seed))
        assert whole.startswith(words) and words == words.rstrip()
        assert BOXED not in words and len(words) < len(whole)
        words, whole = (text.removeprefix(SOLVE).removesuffix(BOXED).split() for text in (words, whole))
        assert min(2, len(whole) - 1) <= len(words) < len(whole)


# --- exercises ----------------------------------------------------------------------------------------------


def is_prime(v: int) -> bool:
    return v > 1 and not any(v % d == 0 for d in range(2, v))


BY_HAND: dict[str, Callable[[Any], Any]] = {
    "the sum of the even numbers in a list": lambda vs: sum(v for v in vs if v / 2 == int(v / 2)),
    "the product of the squares of the numbers in a list": lambda vs: int(np.prod([v**2 for v in vs], dtype=object)),
    "the number of vowels in a string": lambda s: len(re.findall("[aeiou]", s, re.IGNORECASE)),
    "a string without its digits": lambda s: re.sub(r"\d", "", s),
    "a list of the prime numbers in ascending order from 1 to n": lambda n: [v for v in range(n + 1) if is_prime(v)],
    "the largest of the odd digits (0 if there are none) of a positive integer": lambda n: int(
        max(re.findall("[13579]", str(n)), default=0)
    ),
    "the number of words that read the same backwards in a sentence": lambda s: sum(
        w == "".join(reversed(w)) for w in s.lower().split(" ")
    ),
    "the name in the pair with the largest length of the name": lambda ps: [
        name for name, _ in ps if len(name) == max(len(n) for n, _ in ps)
    ][0],
    "a list that holds, for each of the columns of a matrix, the sum of the numbers": lambda t: np.sum(t, 0).tolist(),
}


def test_results_are_those_of_functions_written_by_hand() -> None:
    rng, seen = generator(), Counter[str]()
    for _ in range(40_000):
        task = exercise(rng)
        if task.wanted in BY_HAND and seen[task.wanted] < 5:
            for call, result in task.examples(rng, 3):
                value = ast.literal_eval(call[call.index("(") :])
                assert ast.literal_eval(result) == BY_HAND[task.wanted](value), (task.wanted, call)
            seen[task.wanted] += 1
    assert set(seen) == set(BY_HAND)


def test_tests_and_docstrings_are_python() -> None:
    rng = generator()
    for _ in range(300):
        asserts = question("asserts", rng).partition(PASS)[2].strip()
        calls = [node for node in ast.walk(ast.parse(asserts)) if isinstance(node, ast.Call)]
        assert 1 <= len({ast.unparse(call) for call in calls}) == len(calls) <= 3
        code = re.fullmatch(re.escape(SOLVE) + r"```python\n(.*)\n```", question("docstring", rng), re.DOTALL)
        assert code is not None
        (function,) = [node for node in ast.parse(code[1]).body if isinstance(node, ast.FunctionDef)]
        assert ast.get_docstring(function)
