"""The exact law of a random program: run once for every sequence of choices it can make, nothing is sampled.

It is how the notebooks and a doubter check a verifier. It knows no models, trees or texts: a program is any
function whose only chance is the `choose` it is handed, and whose outcome can be a key of a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TypeVar

Choose = Callable[[Sequence[float]], int]  # probabilities -> the index that was drawn
Outcome = TypeVar("Outcome", bound=Hashable)


class _Run:
    """One run: the choices of a script first, then the first possible one each time; the others are put off."""

    def __init__(self, script: list[int], put_off: list[list[int]]) -> None:
        self.script, self.put_off = script, put_off
        self.made: list[int] = []
        self.probability = 1.0

    def choose(self, probabilities: Sequence[float]) -> int:
        step = len(self.made)
        if step < len(self.script):
            index = self.script[step]
        else:
            index, *others = [i for i, p in enumerate(probabilities) if p > 0]
            self.put_off.extend([*self.made, other] for other in others)
        self.made.append(index)
        self.probability *= float(probabilities[index])
        return index


def outcomes(program: Callable[[Choose], Outcome]) -> Iterator[tuple[Outcome, float]]:
    """Each run's outcome and probability, one run for every sequence of choices; outcomes may come twice.

    The program must end after finitely many choices, and make the same ones when it is told the same.
    """
    waiting: list[list[int]] = [[]]
    while waiting:
        run = _Run(waiting.pop(), waiting)
        outcome = program(run.choose)
        yield outcome, run.probability


def law(program: Callable[[Choose], Outcome]) -> dict[Outcome, float]:
    """The probability of every outcome; they add up to 1 as far as the program's own probabilities do."""
    total: dict[Outcome, float] = {}
    for outcome, probability in outcomes(program):
        total[outcome] = total.get(outcome, 0.0) + probability
    return total


def total_variation(first: Mapping[Outcome, float], second: Mapping[Outcome, float]) -> float:
    """Half the sum of differences of two laws: 0 if they are equal, 1 if no outcome is possible in both."""
    return sum(abs(first.get(key, 0.0) - second.get(key, 0.0)) for key in {*first, *second}) / 2
