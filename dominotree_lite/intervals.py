"""Bootstrap intervals over prompts, for tokens a round above all. It knows nothing of how these were measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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


# --- Several groups of prompts -------------------------------------------------------------------------------

Sums = Sequence[NDArray[np.float64]]  # [R, k] for each group: the sums of its columns in R resamples
Statistic = Callable[[Sums], NDArray[np.float64]]  # -> [R]


def over_groups(groups: Sequence[NDArray[np.float64]], statistic: Statistic, seed: int = 0) -> Interval:
    """A statistic of the column sums of groups of prompts; each group is [prompts, k], with one prompt or more.

    Prompts are resampled within their group, whole rows: what stands in one row (two methods, several seeds of
    a prompt) stays together. For one group this draws what `pooled_ratio` draws.
    """
    random = np.random.default_rng(seed)
    resampled = [_times_drawn(len(group), random) @ group for group in groups]
    low, high = np.quantile(statistic(resampled), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    value = statistic([group.sum(0, keepdims=True) for group in groups])[0]
    return Interval(float(value), float(low), float(high))


def _times_drawn(count: int, random: np.random.Generator) -> NDArray[np.float64]:
    """[R, count]: how often each of `count` prompts is drawn in each resample."""
    chosen = random.integers(count, size=(RESAMPLES, count)) + count * np.arange(RESAMPLES)[:, None]
    return np.bincount(chosen.ravel(), minlength=RESAMPLES * count).reshape(RESAMPLES, count).astype(float)


def ratio_of_sums(above: int, below: int) -> Statistic:
    """The sum of one column over that of another, over all groups; 0 where the latter is 0."""
    return lambda sums: _ratio(_total(sums, above), _total(sums, below))


def ratio_of_ratios(first: tuple[int, int], second: tuple[int, int]) -> Statistic:
    """The first ratio of column sums over the second one: of two rates, how many times faster."""
    return lambda sums: _ratio(ratio_of_sums(*first)(sums), ratio_of_sums(*second)(sums))


def difference_of_ratios(first: tuple[int, int], second: tuple[int, int]) -> Statistic:
    """The first ratio of column sums minus the second one."""
    return lambda sums: ratio_of_sums(*first)(sums) - ratio_of_sums(*second)(sums)


def geometric_mean(statistic: Statistic) -> Statistic:
    """The geometric mean over groups of each group's own positive statistic: every group counts the same."""

    def mean(sums: Sums) -> NDArray[np.float64]:
        with np.errstate(divide="ignore"):  # one group at 0 makes the mean 0
            return np.exp(np.mean([np.log(statistic([one])) for one in sums], axis=0))

    return mean


def _total(sums: Sums, column: int) -> NDArray[np.float64]:
    return np.sum([group[:, column] for group in sums], axis=0)


def _ratio(above: NDArray[np.float64], below: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(above, below, out=np.zeros_like(below), where=below > 0)
