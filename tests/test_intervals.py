"""Intervals against the exact bootstrap distribution of small samples."""

import itertools

import numpy as np
import pytest

from dominotree_lite.intervals import pooled_ratio, pooled_tau, tau_difference

TOKENS, FIRST, SECOND = [10, 30, 5, 8], [5, 7, 4, 2], [6, 12, 3, 4]


def exact(statistic: np.ndarray) -> list[float]:
    return np.quantile(statistic, [0.025, 0.975]).tolist()


def test_an_interval_is_that_of_all_resamples() -> None:
    taus = [sum(TOKENS[i] for i in c) / sum(FIRST[i] for i in c) for c in itertools.product(range(4), repeat=4)]
    found = pooled_tau(TOKENS, FIRST)
    assert found.value == sum(TOKENS) / sum(FIRST)
    assert [found.low, found.high] == pytest.approx(exact(np.array(taus)), abs=0.03)


def test_a_ratio_takes_sums_first_and_need_not_be_of_counts() -> None:
    above, below = [1.5, 0.0, 2.25, 0.5], [1.0, 0.5, 2.0, 0.25]
    ratios = [sum(above[i] for i in c) / sum(below[i] for i in c) for c in itertools.product(range(4), repeat=4)]
    found = pooled_ratio(above, below)
    assert found.value == pytest.approx(4.25 / 3.75)
    assert [found.low, found.high] == pytest.approx(exact(np.array(ratios)), abs=0.03)


def test_differences_resample_prompts_together() -> None:
    def tau(chosen: tuple[int, ...], rounds: list[int]) -> float:
        return sum(TOKENS[i] for i in chosen) / sum(rounds[i] for i in chosen)

    together = [tau(c, FIRST) - tau(c, SECOND) for c in itertools.product(range(4), repeat=4)]
    found = tau_difference(TOKENS, FIRST, SECOND)
    assert found.value == pytest.approx(tau((0, 1, 2, 3), FIRST) - tau((0, 1, 2, 3), SECOND))
    assert [found.low, found.high] == pytest.approx(exact(np.array(together)), abs=0.03)


def test_equal_methods_differ_by_nothing_and_text_shows_all_three() -> None:
    same = tau_difference(TOKENS, FIRST, FIRST)
    assert (same.value, same.low, same.high) == (0, 0, 0)
    assert str(same) == "0.00 [0.00, 0.00]"
