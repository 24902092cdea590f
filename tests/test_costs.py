"""What a round costs: the fit against known curves, the model against its table, profiles kept and refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from toy_models import cached_model, random_drafter, target_of

from dominotree_lite.costs import RoundCosts, load_costs, profile_path, save_costs
from dominotree_lite.drafter import Drafter
from dominotree_lite.errors import InputError
from dominotree_lite.files import write_json
from dominotree_lite.fits import convex, plane
from dominotree_lite.profiling import ProfileSettings, profile
from dominotree_lite.target import Target

X = np.array([0.0, 1, 2, 4, 8, 16, 32, 64])
CONVEX = [np.full(8, 3.0), 1 + X, 2 + np.maximum(0, X - 8), 1 + X**2, 5 + 0.1 * X + 2 * np.maximum(0, X - 20)]
COSTS = RoundCosts((10, 30), (0, 4, 8), (1.0, 3.0), ((2.0, 4.0, 8.0), (4.0, 6.0, 14.0)), 0.5, 0.25, 0.125)


@pytest.mark.parametrize("curve", CONVEX, ids=range(len(CONVEX)))
def test_a_convex_curve_is_its_own_fit(curve: np.ndarray) -> None:
    np.testing.assert_allclose(convex(X, curve), curve, rtol=1e-9)


def test_a_fit_is_monotone_convex_and_none_such_is_closer() -> None:
    chance = np.random.default_rng(0)
    for _ in range(30):
        noisy = (3 + X / 10) * chance.uniform(0.7, 1.3, len(X))
        fitted = convex(X, noisy)
        slopes = np.diff(fitted) / np.diff(X)
        assert (slopes > -1e-9).all() and (np.diff(slopes) > -1e-9).all()
        error = ((fitted / noisy - 1) ** 2).sum()
        for _ in range(200):  # other such curves, near and far
            hinges = np.maximum(0, np.subtract.outer(X, X[:-1])) @ (chance.random(7) * chance.choice([0.01, 0.1]))
            mixed = fitted + chance.choice([0.01, 0.3]) * (3 * chance.random() + hinges - fitted)
            assert ((mixed / noisy - 1) ** 2).sum() >= error - 1e-9


def test_a_plane_is_found_and_has_no_negative_weight() -> None:
    columns = np.array([[1, 1, 1], [1, 4, 9], [1, 8, 8], [1, 8, 100.0]])
    np.testing.assert_allclose(plane(columns, columns @ [0.5, 0.25, 0.125]), [0.5, 0.25, 0.125], rtol=1e-9)
    assert (plane(columns, np.array([9.0, 4, 2, 1])) >= 0).all()


def test_costs_interpolate_between_contexts_and_nodes() -> None:
    assert COSTS.draft(20) == 2.0 and COSTS.draft(1) == 1.0 and COSTS.draft(99) == 3.0
    assert COSTS.build(3, 10) == 0.5 + 0.75 + 1.25
    np.testing.assert_allclose(COSTS.verify(10, 10), [2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9, 10])
    np.testing.assert_allclose(COSTS.verify(8, 20)[[0, 4, 8]], [3, 5, 11])
    np.testing.assert_allclose(COSTS.verify(0, 500), [4])


@pytest.mark.parametrize(
    "change",
    [
        {"contexts": (30, 10)},
        {"nodes": (1, 4, 8)},
        {"nodes": (0, 4)},
        {"draft_seconds": (1.0,)},
        {"draft_seconds": (1.0, -1.0)},
        {"build_lane": float("nan")},
        {"contexts": ()},
        {"build_depth": "x"},
    ],
    ids=str,
)
def test_costs_that_make_no_sense_are_refused(change: dict) -> None:
    with pytest.raises(InputError):
        RoundCosts.from_json(COSTS.to_json() | change)


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Target, Drafter]:
    monkeypatch.setenv("DOMINOTREE_CACHE", str(tmp_path))
    target = target_of(cached_model())
    return target, random_drafter(target, "domino")


def test_a_profile_is_kept_for_this_pair_alone(pair: tuple[Target, Drafter]) -> None:
    target, drafter = pair
    path = save_costs(COSTS, {}, target, drafter)
    assert load_costs(target, drafter) == COSTS
    assert json.loads(path.read_text())["station"]["target"] == "toy"
    with pytest.raises(InputError, match="run dominotree profile"):
        load_costs(target, random_drafter(target, "dflash"))


@pytest.mark.parametrize("content", [[], {}, {"format": 1}, {"format": 9, "costs": COSTS.to_json()}, "x"], ids=str)
def test_a_profile_that_can_not_be_read_is_one_line(content: object, pair: tuple[Target, Drafter]) -> None:
    write_json(profile_path(*pair), content)
    with pytest.raises(InputError, match="again") as refused:
        load_costs(*pair)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", ["dflash", "domino"])
def test_a_profile_measures_every_part_and_changes_nothing(kind: str, pair: tuple[Target, Drafter]) -> None:
    target, drafter = pair[0], random_drafter(pair[0], kind)
    steps: list[None] = []
    settings = ProfileSettings((20, 8), max_budget=12, candidates=20, repeats=2)
    found = profile(target, drafter, settings, lambda: steps.append(None))
    assert len(steps) == 3
    assert found.costs.contexts == (8, 20) and found.costs.nodes == (0, 1, 2, 4, 8, 12)
    assert RoundCosts.from_json(json.loads(json.dumps(found.costs.to_json()))) == found.costs
    for row in found.costs.verify_seconds:
        assert row[0] > 0 and (np.diff(np.diff(row) / np.diff(found.costs.nodes)) > -1e-9).all()
    assert {(depths, lanes) for depths, lanes, _ in found.measured["build"]} >= {(1, 1), (5, 5)}
    assert max(lanes for _, lanes, _ in found.measured["build"]) > 20


def test_a_profile_beyond_the_positions_is_refused(pair: tuple[Target, Drafter]) -> None:
    with pytest.raises(InputError, match="positions"):
        profile(*pair, ProfileSettings((pair[0].max_positions,)))
    for wrong in ({"contexts": ()}, {"contexts": (2,)}, {"repeats": 0}, {"max_budget": 1}):
        with pytest.raises(InputError):
            ProfileSettings(**wrong)
