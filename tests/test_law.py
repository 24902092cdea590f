"""Laws of programs that can be worked out by hand, and those of independent choices by brute force."""

from itertools import product
from math import comb, prod

import numpy as np
import pytest

from dominotree_lite.law import Choose, law, outcomes, total_variation


def test_two_dice_have_the_law_that_is_worked_out_by_hand() -> None:
    got = law(lambda choose: choose([1 / 6] * 6) + choose([1 / 6] * 6) + 2)
    assert got == pytest.approx({total: (6 - abs(total - 7)) / 36 for total in range(2, 13)}, abs=1e-15)


def test_how_often_it_chooses_may_depend_on_what_was_chosen() -> None:
    def tosses(choose: Choose) -> int:
        count = 1
        while count < 5 and choose([0.25, 0.75]):
            count += 1
        return count

    wanted = {count: 0.75 ** (count - 1) * (0.25 if count < 5 else 1) for count in range(1, 6)}
    assert law(tosses) == pytest.approx(wanted, abs=1e-15)


def test_every_sequence_of_possible_choices_is_run_once_and_no_impossible_one() -> None:
    rows = [[0.5, 0.0, 0.5], [0.0, 1.0], [0.1, 0.2, 0.7]]
    got = list(outcomes(lambda choose: tuple(choose(row) for row in rows)))
    wanted = {
        picks: prod(row[i] for row, i in zip(rows, picks, strict=True))
        for picks in product(*(range(len(row)) for row in rows))
    }
    possible = {picks: p for picks, p in wanted.items() if p > 0}
    assert len(got) == len(possible) == 6
    assert dict(got) == pytest.approx(possible, abs=1e-15)


def test_a_program_without_chance_has_one_outcome_and_numpy_rows_are_taken() -> None:
    assert law(lambda choose: "sure") == {"sure": 1.0}
    got = law(lambda choose: sum(choose(np.array([0.5, 0.5])) for _ in range(3)))
    assert got == pytest.approx({k: comb(3, k) / 8 for k in range(4)}, abs=1e-15)


def test_total_variation_is_zero_for_equal_laws_and_one_for_laws_that_share_nothing() -> None:
    first = {"a": 0.5, "b": 0.5}
    assert total_variation(first, dict(first)) == 0
    assert total_variation(first, {"c": 1.0}) == 1
    assert total_variation(first, {"a": 0.25, "b": 0.5, "c": 0.25}) == pytest.approx(0.25)
