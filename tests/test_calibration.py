"""Calibration read off real rounds against the target's own text, and of drafts whose chances are known."""

import math

import numpy as np
import pytest
from toy_models import cached_model, greedy, oracle_drafter, random_drafter, target_of

from dominotree_lite.calibration import Bin, calibration_error, lengths_of, nodes_of, reliability
from dominotree_lite.decode import Result, Settings, decode
from dominotree_lite.errors import InputError

PROMPT, NEW = [3, 1, 4, 1, 5], 40


@pytest.mark.parametrize("wrong", [0.0, 0.5])
def test_hits_are_the_nodes_whose_path_is_the_targets_text(wrong: float) -> None:
    target = target_of(cached_model())
    drafter = oracle_drafter(target, PROMPT, NEW + 8, "dflash", wrong=wrong)
    result = decode(PROMPT, target, drafter, Settings(method="ddtree", budget=12, max_new_tokens=NEW))
    assert isinstance(result, Result)
    text = PROMPT + greedy(target.model, PROMPT, NEW + 8)
    expected, hits = [], []
    for one in result.rounds:
        for node in range(1, len(one.tree) + 1):
            path = [int(one.tree.tokens[i]) for i in one.tree.path(node)]
            hits.append(path == text[one.start + 1 : one.start + 1 + len(path)])
            expected.append(math.exp(one.tree.log_probs[node]))
    found = nodes_of(result.rounds)
    assert found.hit.tolist() == hits and any(hits) and not all(hits)
    assert found.predicted.tolist() == pytest.approx(expected)
    assert len(found.at(1)) == sum(int((one.tree.depths == 1).sum()) for one in result.rounds)
    lengths = lengths_of(result.rounds)
    assert lengths.realised.sum() == sum(hits)
    assert lengths.expected.sum() == pytest.approx(sum(expected))


def test_a_drafter_that_knows_nothing_promises_more_than_comes() -> None:
    target = target_of(cached_model())
    result = decode(
        PROMPT,
        target,
        random_drafter(target, "dflash"),
        Settings(method="ddtree", budget=12, max_new_tokens=NEW),
    )
    assert isinstance(result, Result)
    lengths = lengths_of(result.rounds)
    assert lengths.expected.mean() > lengths.realised.mean()


def test_draws_with_the_promised_chances_are_calibrated_and_others_are_not() -> None:
    rng = np.random.default_rng(0)
    predicted = rng.random(40_000) ** 3
    bins = reliability(predicted, rng.random(40_000) < predicted)
    assert len(bins) == 10 and sum(each.count for each in bins) == 40_000
    assert all(a.predicted < b.predicted for a, b in zip(bins, bins[1:], strict=False))
    assert sum(each.low <= each.predicted <= each.high for each in bins) >= 8
    assert calibration_error(bins) < 0.01
    shifted = reliability(predicted, rng.random(40_000) < predicted / 2)
    assert calibration_error(shifted) == pytest.approx(predicted.mean() / 2, abs=0.01)


def test_bins_by_hand() -> None:
    predicted, hit = np.array([0.9, 0.1, 0.2, 0.8]), np.array([True, False, True, True])
    low, high = reliability(predicted, hit, bins=2)
    assert (low.count, low.predicted, low.realised) == (2, pytest.approx(0.15), 0.5)
    assert (high.count, high.predicted, high.realised) == (2, pytest.approx(0.85), 1.0)
    assert low.low == pytest.approx(0.0945, abs=1e-3) and low.high == pytest.approx(0.9055, abs=1e-3)
    assert calibration_error([low, high]) == pytest.approx((0.35 + 0.15) / 2)
    assert calibration_error([Bin(3, 0.5, 0.5, 0, 1)]) == 0
    assert len(reliability(predicted, hit, bins=9)) == 4


def test_nothing_to_calibrate_is_refused() -> None:
    with pytest.raises(InputError):
        nodes_of([])
    with pytest.raises(InputError):
        reliability(np.array([]), np.array([]))
