"""Results read back: differences of known counts, also between drafters that know different methods."""

import pytest

from dominotree_lite.train.results import Results

TEXTS = {"prompts": {"names": ["a", "b"], "groups": ["g", "g"], "tokens": [12, 12]}}


def record(variant: str, seed: int, rounds: dict[str, list[int]]) -> dict[str, object]:
    return {"variant": variant, "seed": seed, "rounds": {"prompts": rounds}}


RESULTS = Results(
    [
        record("with", 0, {"domino": [4, 4], "dominotree": [3, 3]}),
        record("with", 1, {"domino": [4, 4], "dominotree": [3, 3]}),
        record("without", 0, {"dflash": [6, 6], "ddtree": [4, 4]}),
        record("slow", 0, {"domino": [6, 6], "dominotree": [4, 4]}),
    ],
    TEXTS,
)


def test_differences_of_the_same_and_of_different_methods() -> None:
    assert RESULTS.difference("with", "slow", "domino").value == pytest.approx(3.0 - 2.0)
    assert RESULTS.difference("with", "without", "domino", second_method="dflash").value == pytest.approx(3.0 - 2.0)
    gap = RESULTS.difference("with", "without", "dominotree", second_method="ddtree")
    assert (gap.value, gap.low, gap.high) == pytest.approx((1.0, 1.0, 1.0))
