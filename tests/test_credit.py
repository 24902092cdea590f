"""Maps from scores to chances: fitted to draws whose chances are known, kept beside weights, refused for others."""

import json
from pathlib import Path

import numpy as np
import pytest
from toy_models import drafter_config, randomise, target_of, tiny_model

from dominotree_lite.calibrating import calibrate, calibration_of
from dominotree_lite.calibration import Nodes
from dominotree_lite.checkpoints import load_drafter, save_drafter
from dominotree_lite.credit import IDENTITY, Credit, Fit, load_credit, save_credit
from dominotree_lite.decode import Settings, decode
from dominotree_lite.drafter import Drafter, DraftModel
from dominotree_lite.errors import InputError
from dominotree_lite.fits import credit
from dominotree_lite.prompts import PromptRow
from dominotree_lite.replay import Place
from dominotree_lite.tree import DraftTree


def scattered(power: float, count: int = 60_000) -> Nodes:
    """Nodes that come true with their promise to this power."""
    chance = np.random.default_rng(3)
    predicted = chance.random(count) ** 3
    return Nodes(predicted, np.ones(count, int), chance.random(count) < predicted**power)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_a_fit_finds_the_chances_that_draws_were_made_with(power: float) -> None:
    found = credit(scattered(power))
    at = np.array([0.1, 0.3, 0.5, 0.7, 0.9])
    np.testing.assert_allclose(found(np.log(at)), at**power, atol=0.04)
    grid = found(np.log(np.linspace(0.001, 1, 500)))
    assert (np.diff(grid) >= 0).all()


def test_a_map_by_hand() -> None:
    found = Credit((0.2, 0.6), (0.1, 0.5))(np.log([0.1, 0.2, 0.4, 0.6, 1.0]))
    np.testing.assert_allclose(found, [0.05, 0.1, 0.3, 0.5, 0.5])
    scores = np.log(np.random.default_rng(0).random(100))
    np.testing.assert_array_equal(IDENTITY(scores), np.exp(scores))
    assert Credit((0.5,), (0.2,))(np.array([-np.inf])).tolist() == [0.0]


@pytest.mark.parametrize("knots", [((), ()), ((0.5, 0.2), (0.1, 0.2)), ((0.5,), (1.5,)), ((0.2, 0.5), (0.4, 0.3))])
def test_a_map_that_falls_is_refused(knots: tuple[tuple[float, ...], tuple[float, ...]]) -> None:
    with pytest.raises(InputError):
        Credit(*knots)


def test_the_check_is_on_prompts_that_were_not_fitted() -> None:
    def place(score: float, hit: bool) -> Place:
        return Place(DraftTree.from_lists([5, 6], [-1, 0], [0, 1], [0.0, np.log(score)]), [1] * hit)

    right, wrong = [place(0.5, i % 2 == 0) for i in range(40)], [place(0.5, False) for _ in range(40)]
    found = calibration_of([right, wrong])  # each half's map is the other's share of hits, and one node as promised
    assert (found.rounds, found.accepted, found.promised) == (80, 0.25, 0.5)
    assert found.fitted == pytest.approx((0.5 / 41 + 0.5) / 2)
    assert found.credit(np.log([0.5])) == pytest.approx(20.5 / 81)
    with pytest.raises(InputError, match="two or more"):
        calibration_of([right])


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Drafter:
    folder, target = tmp_path_factory.mktemp("drafter"), target_of(tiny_model())
    model = DraftModel(drafter_config(target.vocab_size, target.hidden_size, "domino", True))
    randomise(model, seed=3)
    save_drafter(model, folder, target.num_layers)
    return load_drafter(str(folder), target)


def test_calibrating_decodes_as_decode_does(drafter: Drafter) -> None:
    target = target_of(tiny_model())
    prompts = [PromptRow(str(i), "x", ("Hi",)) for i in range(2)]
    with pytest.raises(InputError, match="tokenizer"):
        calibrate(prompts, target, drafter, Settings())
    rounds = [decode([i, 3], target, drafter, Settings(budget=9, max_new_tokens=20)).rounds for i in range(6)]
    found = calibration_of([[one for one in each if len(one.tree)] for each in rounds])
    drafted = [one for each in rounds for one in each if len(one.tree)]
    assert found.accepted == np.mean([len(one.accepted) for one in drafted])
    assert found.promised == pytest.approx(np.mean([one.tree.expected_accepted() for one in drafted]))


def test_maps_are_kept_by_temperature_and_candidates(drafter: Drafter) -> None:
    with pytest.raises(InputError, match="run dominotree calibrate"):
        load_credit(drafter, 0.0, 512)
    one, other = Credit((0.5,), (0.25,)), Credit((0.5, 1.0), (0.25, 0.5))
    for fit in (Fit(other, 0.0, 512, 3), Fit(other, 1.0, None, 3), Fit(one, 0.0, 512, 4)):
        path = save_credit(drafter, fit)
    assert load_credit(drafter, 0.0, 512) == one and load_credit(drafter, 1.0, None) == other
    assert len(json.loads(path.read_text())["fits"]) == 2
    with pytest.raises(InputError, match="--temperature 0.5 --candidates full"):
        load_credit(drafter, 0.5, None)


def test_a_map_of_other_weights_is_refused_and_replaced(drafter: Drafter) -> None:
    path = save_credit(drafter, Fit(IDENTITY, 0.0, 512, 3))
    weights = next(Path(drafter.name).glob("*.safetensors"))
    before = weights.read_bytes()
    try:
        weights.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        with pytest.raises(InputError, match="other weights") as refused:
            load_credit(drafter, 0.0, 512)
        assert "\n" not in str(refused.value) and "run dominotree calibrate" in str(refused.value)
        save_credit(drafter, Fit(IDENTITY, 1.0, 512, 3))
        assert [one["temperature"] for one in json.loads(path.read_text())["fits"]] == [1.0]
    finally:
        weights.write_bytes(before)


@pytest.mark.parametrize("content", ["[]", "{}", "x", '{"format": 1, "drafter_sha256": "", "fits": [1]}'])
def test_a_file_that_is_no_calibration_is_one_line(content: str, drafter: Drafter) -> None:
    (Path(drafter.name) / "calibration.json").write_text(content)
    with pytest.raises(InputError, match="not a calibration") as refused:
        load_credit(drafter, 0.0, 512)
    assert "\n" not in str(refused.value)
