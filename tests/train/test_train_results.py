"""Results read back: differences of known counts, also between drafters that know different methods."""

import json
from pathlib import Path

import pytest

from dominotree_lite.errors import InputError
from dominotree_lite.train.results import Results

Counts = dict[str, list[int]]


def record(variant: str, seed: int, rounds: Counts, tokens: tuple[int, int] = (12, 12)) -> dict[str, object]:
    return {"variant": variant, "seed": seed, "tokens": {"prompts": list(tokens)}, "rounds": {"prompts": rounds}}


RESULTS = Results(
    [
        record("with", 0, {"domino": [4, 4], "dominotree": [3, 3]}),
        record("with", 1, {"domino": [4, 4], "dominotree": [3, 3]}),
        record("without", 0, {"dflash": [6, 6], "ddtree": [4, 4]}),
        record("slow", 0, {"domino": [6, 6], "dominotree": [4, 4]}),
        record("of-two-calls", 0, {"domino": [4, 2]}, (12, 8)),
        record("of-two-calls", 1, {"domino": [6, 2]}, (18, 4)),
    ],
)


def test_differences_of_the_same_and_of_different_methods() -> None:
    assert RESULTS.difference("with", "slow", "domino").value == pytest.approx(3.0 - 2.0)
    assert RESULTS.difference("with", "without", "domino", second_method="dflash").value == pytest.approx(3.0 - 2.0)
    gap = RESULTS.difference("with", "without", "dominotree", second_method="ddtree")
    assert (gap.value, gap.low, gap.high) == pytest.approx((1.0, 1.0, 1.0))


def test_runs_of_different_calls_count_their_own_tokens() -> None:
    tau = RESULTS.tau("of-two-calls", "domino")
    assert tau.value == pytest.approx((12 + 8 + 18 + 4) / (4 + 2 + 6 + 2))
    assert (tau.low, tau.high) == pytest.approx((30 / 10, 12 / 4))  # of a resample of one text alone: both are 3
    assert RESULTS.difference("of-two-calls", "slow", "domino").value == pytest.approx(20 / 6 - 24 / 12)


def test_files_of_several_calls_are_read_as_one(tmp_path: Path) -> None:
    for number, one in enumerate(RESULTS.records):
        (tmp_path / f"{number}.jsonl").write_text(json.dumps(one) + "\n")
    read = Results.load(*(tmp_path / f"{number}.jsonl" for number in range(len(RESULTS.records))))
    assert read == RESULTS
    (tmp_path / "0.jsonl").write_text("{")
    with pytest.raises(InputError, match="0.jsonl: not the results of a grid"):
        Results.load(tmp_path / "0.jsonl")
