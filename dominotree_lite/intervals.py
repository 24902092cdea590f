"""Bootstrap intervals over prompts, for tokens a round above all. It knows nothing of how these were measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """An estimate and the percentile bootstrap's interval around it (`LEVEL` of the resamples lie inside)."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def pooled_ratio(above: Sequence[float], below: Sequence[float], seed: int = 0) -> Interval:
    """The sum of `above` over that of `below`, prompts resampled with replacement. Both [prompts]; at least one."""
    return _interval(np.asarray(above, float), [np.asarray(below, float)], seed)


def pooled_tau(tokens: Sequence[int], rounds: Sequence[int], seed: int = 0) -> Interval:
    """All tokens over all rounds, prompts resampled with replacement. Both [prompts]; at least one prompt."""
    return pooled_ratio(tokens, rounds, seed)


def tau_difference(tokens: Sequence[int], first: Sequence[int], second: Sequence[int], seed: int = 0) -> Interval:
    """tau of the first method minus that of the second on the same prompts, resampled together."""
    return _interval(np.asarray(tokens, float), [np.asarray(first, float), np.asarray(second, float)], seed)


def _interval(tokens: np.ndarray, rounds: list[np.ndarray], seed: int) -> Interval:
    def estimate(chosen: np.ndarray) -> np.ndarray:
        ratios = [tokens[chosen].sum(-1) / each[chosen].sum(-1) for each in rounds]
        return ratios[0] - ratios[1] if len(ratios) == 2 else ratios[0]

    count = len(tokens)
    chosen = np.random.default_rng(seed).integers(count, size=(RESAMPLES, count))
    low, high = np.quantile(estimate(chosen), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(estimate(np.arange(count))), float(low), float(high))
