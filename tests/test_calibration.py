"""Calibration read off real rounds against the target's own text, and of drafts whose chances are known."""

import math

import numpy as np
import pytest
import torch
from toy_models import cached_model, greedy, oracle_drafter, random_drafter, target_of

from dominotree_lite.build import frontier, heap
from dominotree_lite.calibration import (
    Bin,
    Nodes,
    TemperedScorer,
    calibration_error,
    drawn,
    error_interval,
    fit_temperature,
    lengths_of,
    log_loss,
    nodes_of,
    ranks_of,
    reliability,
    reliability_by_promise,
    sliced,
    split,
)
from dominotree_lite.decode import Result, Settings, decode
from dominotree_lite.errors import InputError
from dominotree_lite.replay import Place
from dominotree_lite.scoring import MarginalScorer
from dominotree_lite.tape import Tape

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


def test_bins_of_equal_promise_by_hand() -> None:
    predicted, hit = np.array([0.1, 0.9, 0.2, 0.3, 0.3]), np.array([False, True, False, True, False])
    low, high = reliability_by_promise(predicted, hit, bins=2)  # 0.1, 0.2, 0.3, 0.3 promise as much as 0.9
    assert (low.count, low.predicted, low.realised) == (4, pytest.approx(0.225), 0.25)
    assert (high.count, high.predicted, high.realised) == (1, pytest.approx(0.9), 1.0)
    uneven = np.array([0.0, 0.1, 1.0])  # the second of three bins would be empty
    assert [each.count for each in reliability_by_promise(uneven, hit[:3], bins=3)] == [2, 1]


def test_bins_of_equal_promise_promise_equally() -> None:
    rng = np.random.default_rng(0)
    predicted = rng.random(20_000) ** 8
    hit = rng.random(20_000) < predicted
    bins = reliability_by_promise(predicted, hit)
    assert len(bins) == 10 and sum(each.count for each in bins) == 20_000
    promised = [each.count * each.predicted for each in bins]
    assert promised == pytest.approx([predicted.sum() / 10] * 10, abs=1)
    assert all(a.predicted < b.predicted for a, b in zip(bins, bins[1:], strict=False))
    assert calibration_error(bins) < 0.01


def scattered(rng: np.random.Generator, count: int, power: float = 1.0) -> Nodes:
    """Nodes that come true with their promise to this power."""
    predicted = rng.random(count) ** 3
    return Nodes(predicted, np.ones(count, int), rng.random(count) < predicted**power)


def test_the_error_s_interval_narrows_with_groups_and_knows_a_wrong_promise() -> None:
    rng = np.random.default_rng(1)
    wrong = [scattered(rng, 200, 2.0) for _ in range(40)]
    few, many = error_interval(wrong[:10]), error_interval(wrong)
    assert many.high - many.low < few.high - few.low
    truth = 1 / 4 - 1 / 7  # mean of u^3 less that of u^6
    assert many.low < truth < many.high and many.low > 0.05
    pooled = Nodes(*(np.concatenate([getattr(g, f) for g in wrong]) for f in ("predicted", "depth", "hit")))
    assert many.value == calibration_error(reliability_by_promise(pooled.predicted, pooled.hit))
    right = error_interval([scattered(rng, 200) for _ in range(40)])
    assert right.high < many.low
    alike = error_interval([wrong[0]] * 5)
    assert alike.low == pytest.approx(alike.value) == pytest.approx(alike.high)


LAW: dict[tuple[int, ...], dict[int, float]] = {
    (): {0: 0.6, 1: 0.3},
    (0,): {0: 0.9, 1: 0.1},
    (1,): {0: 0.5, 1: 0.5},
    (0, 0): {1: 0.25},
} | dict.fromkeys([(0, 1), (1, 0), (1, 1)], {})


def test_a_drawn_text_follows_the_tree_as_often_as_its_law_says() -> None:
    tree = heap(Tape.by_hand(LAW), 9, 7)
    draws = [drawn(tree, (i + 0.5) / 2000) for i in range(2000)]
    for nodes in draws:
        assert nodes == (tree.path(nodes[-1]) if nodes else [])
    assert [] in draws  # the law leaves a tenth of the root open
    for node in range(1, len(tree) + 1):
        share = np.mean([node in nodes for nodes in draws])
        assert share == pytest.approx(math.exp(tree.log_probs[node]), abs=1e-3)


def test_scores_that_promise_too_much_by_rounding_draw_no_path_without_its_parent() -> None:
    rounded = heap(Tape.by_hand({(): {0: 0.5, 1: 0.5}, (0,): {0: 0.5, 1: 0.51}, (1,): {}}), 9, 4)
    for i in range(1000):
        nodes = drawn(rounded, i / 1000)
        assert nodes == (rounded.path(nodes[-1]) if nodes else [])


def test_a_temperature_divides_scores_and_keeps_what_came() -> None:
    nodes = Nodes(np.array([0.25, 0.81, 1.0]), np.array([1, 2, 3]), np.array([True, False, True]))
    warm = nodes.tempered(2.0)
    assert warm.predicted.tolist() == pytest.approx([0.5, 0.9, 1.0])
    assert warm.depth.tolist() == [1, 2, 3] and warm.hit.tolist() == nodes.hit.tolist()
    assert nodes.tempered(1.0).predicted.tolist() == nodes.predicted.tolist()
    assert nodes[np.array([2, 0])].depth.tolist() == [3, 1]


@pytest.mark.parametrize("power", [0.5, 1.0, 2.5])
def test_the_fitted_temperature_has_the_least_loss_and_finds_the_power(power: float) -> None:
    nodes = scattered(np.random.default_rng(2), 30_000, power)
    found = fit_temperature(nodes)
    assert 1 / found == pytest.approx(power, rel=0.05)
    least = log_loss(nodes.tempered(found))
    assert all(least <= log_loss(nodes.tempered(t)) for t in np.geomspace(0.1, 10, 41))


def test_the_loss_by_hand() -> None:
    nodes = Nodes(np.array([0.5, 0.2]), np.array([1, 1]), np.array([True, False]))
    assert log_loss(nodes) == pytest.approx((math.log(2) - math.log(0.8)) / 2)
    impossible = Nodes(np.array([0.0]), np.array([1]), np.array([True]))
    assert log_loss(impossible) == math.inf
    extremes = Nodes(np.array([0.0, 1.0, 0.5]), np.array([1, 1, 1]), np.array([False, False, True]))
    assert math.isfinite(log_loss(extremes)) and math.isfinite(fit_temperature(extremes))


def test_a_temperature_inside_gives_the_softmax_of_divided_logits() -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 12, dtype=torch.float64)
    inside = frontier(TemperedScorer(MarginalScorer(logits, 12), 2.5, 4), 9, 20)
    plain = frontier(MarginalScorer(logits / 2.5, 4), 9, 20)
    assert inside.tokens.tolist() == plain.tokens.tolist()
    np.testing.assert_allclose(inside.log_probs, plain.log_probs)
    same = frontier(TemperedScorer(MarginalScorer(logits, 12), 1.0, 4), 9, 20)
    assert same.tokens.tolist() == frontier(MarginalScorer(logits, 4), 9, 20).tokens.tolist()
    nothing = torch.full((1, 3), -math.inf, dtype=torch.float64)
    assert len(heap(TemperedScorer(MarginalScorer(nothing, 3), 2.0, 3), 9, 4)) == 0


def test_dividing_scores_leaves_the_tree_and_a_temperature_inside_may_not() -> None:
    divided = Tape.by_hand({path: {t: p**0.5 for t, p in children.items()} for path, children in LAW.items()})
    tree, warm = (heap(tape, 9, 7) for tape in (Tape.by_hand(LAW), divided))
    assert (warm.tokens.tolist(), warm.parents.tolist()) == (tree.tokens.tolist(), tree.parents.tolist())
    np.testing.assert_allclose(warm.log_probs, tree.log_probs / 2)
    inside = heap(TemperedScorer(Tape.by_hand(LAW), 4.0, 2), 9, 7)
    assert inside.depths.tolist() != tree.depths.tolist()


def test_places_are_read_as_rounds_are() -> None:
    tree = heap(Tape.by_hand(LAW), 9, 4)
    nodes = nodes_of([Place(tree, [1, 2]), Place(tree, [])])
    assert nodes.hit.tolist() == [True, True] + [False] * 6
    assert lengths_of([Place(tree, [1, 2])]).realised.tolist() == [2]


def test_nothing_to_calibrate_is_refused() -> None:
    with pytest.raises(InputError):
        nodes_of([])
    with pytest.raises(InputError):
        reliability(np.array([]), np.array([]))
    with pytest.raises(InputError):
        reliability_by_promise(np.array([0.5]), np.array([True]), bins=0)
    with pytest.raises(InputError, match="promises anything"):
        reliability_by_promise(np.zeros(3), np.zeros(3, bool))
    with pytest.raises(InputError):
        error_interval([])
    sure = Nodes(np.array([0.5]), np.array([1]), np.array([True]))
    with pytest.raises(InputError, match="not"):
        fit_temperature(sure)
    for temperature in (0.0, -1.0, math.nan):
        with pytest.raises(InputError, match="above 0"):
            sure.tempered(temperature)
        with pytest.raises(InputError, match="above 0"):
            TemperedScorer(MarginalScorer(torch.zeros(1, 2), 2), temperature, 2)


def test_slices_by_rank_and_by_depth() -> None:
    tree = heap(Tape.by_hand(LAW), 9, 7)
    rounds = [[Place(tree, [1, 2])], [Place(tree, []), Place(tree, [1])]]
    groups = [nodes_of(each) for each in rounds]
    ranks = [ranks_of(each) for each in rounds]
    for each, own in zip(groups, ranks, strict=True):
        assert len(own) == len(each)
    best = [n for n in range(1, 8) if tree.children(int(tree.parents[n]))[0] == n]
    rows = {row.label: row for row in sliced(split(groups, ranks), bins=2)}
    assert list(rows) == ["0", "1"] and rows["0"].count == 3 * len(best)
    hits = sum(node in place.accepted for each in rounds for place in each for node in best)
    assert rows["0"].realised == hits / (3 * len(best))
    promise = np.exp(tree.log_probs[best]).mean()
    assert rows["0"].predicted == pytest.approx(promise)
    by_depth = sliced(split(groups, [each.depth for each in groups]), bins=2)
    assert sum(row.count for row in by_depth) == 21 and [row.label for row in by_depth] == ["1", "2", "3"]
    nothing = Nodes(np.zeros(2), np.ones(2, int), np.zeros(2, bool))
    assert sliced({"empty": [nothing]}) == []
