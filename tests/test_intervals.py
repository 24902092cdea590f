"""Intervals against the exact bootstrap distribution of small samples."""

import itertools

import numpy as np
import pytest

from dominotree_lite.intervals import (
    difference_of_ratios,
    geometric_mean,
    over_groups,
    pooled_ratio,
    pooled_tau,
    ratio_of_ratios,
    ratio_of_sums,
    tau_difference,
)

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


def test_groups_are_resampled_each_within_itself() -> None:
    """Two groups of two prompts: 16 equally likely resamples, so that the ends of 95 % are the outermost two."""
    groups = [np.array([[10.0, 5], [30, 7]]), np.array([[5.0, 4], [8, 2]])]
    every = [
        np.array([groups[0][list(a)].sum(0), groups[1][list(b)].sum(0)])
        for a in itertools.product(range(2), repeat=2)
        for b in itertools.product(range(2), repeat=2)
    ]
    pooled = [sums[:, 0].sum() / sums[:, 1].sum() for sums in every]
    found = over_groups(groups, ratio_of_sums(0, 1))
    assert found.value == pytest.approx(53 / 18)
    assert [found.low, found.high] == pytest.approx([min(pooled), max(pooled)])
    means = [np.sqrt(np.prod(sums[:, 0] / sums[:, 1])) for sums in every]
    found = over_groups(groups, geometric_mean(ratio_of_sums(0, 1)))
    assert found.value == pytest.approx(np.sqrt(40 / 12 * 13 / 6))
    assert [found.low, found.high] == pytest.approx([min(means), max(means)])


def test_one_group_is_what_pairs_always_were() -> None:
    group = [np.array([TOKENS, FIRST, SECOND], float).T]
    assert over_groups(group, ratio_of_sums(0, 1)) == pooled_tau(TOKENS, FIRST)
    assert over_groups(group, difference_of_ratios((0, 1), (0, 2))) == tau_difference(TOKENS, FIRST, SECOND)
    ratio = over_groups(group, ratio_of_ratios((0, 1), (0, 2)))
    assert ratio.value == pytest.approx(sum(SECOND) / sum(FIRST))
    same = over_groups(group, ratio_of_ratios((0, 1), (0, 1)))
    assert (same.value, same.low, same.high) == (1, 1, 1)
    nothing = over_groups([np.zeros((2, 2))], ratio_of_sums(0, 1))
    assert (nothing.value, nothing.low, nothing.high) == (0, 0, 0)
