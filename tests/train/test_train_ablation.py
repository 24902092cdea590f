"""A grid run on a tiny model: what each run gets, what is recorded of it, and that it goes on after a kill."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_training import random_rows, tiny_qwen3, write_npz

import dominotree_lite as dt
from dominotree_lite.checkpoints import save_drafter
from dominotree_lite.decode import Result
from dominotree_lite.errors import InputError
from dominotree_lite.prompts import PromptRow
from dominotree_lite.target import Target
from dominotree_lite.train.ablation import Ablation, AblationConfig
from dominotree_lite.train.grid import GRID, Variant, choose, load_grid
from dominotree_lite.train.loop import TrainConfig
from dominotree_lite.train.losses import fresh_model
from dominotree_lite.train.recipe import DrafterSizes, drafter_config
from dominotree_lite.train.walk import TreeSize

SIZES = DrafterSizes(layers=1, features=2, block=5, gru=8, rank=4)
PROMPTS = [PromptRow("a", "greetings", ("Hi",)), PromptRow("b", "questions", ("Why?", "And then?"))]
CONFIG = AblationConfig(
    seconds=0.3,
    recipe=TrainConfig(rows=4, anchors=4, learning_rate=3e-3),
    sizes=SIZES,
    held_out_texts=5,
    new_tokens=16,
    tree=TreeSize(6, 20),
)
VARIANTS = [Variant("plain"), Variant("no-head", kind="dflash"), Variant("wide", sizes={"rank": 8}, files=("two*",))]


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_qwen3()


@pytest.fixture(scope="module")
def corpus(target: Target, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("corpus")
    sets = [("one.npz", 0), ("two.npz", 1)]
    return [write_npz(folder / name, random_rows(300, target.vocab_size, seed), 4) for name, seed in sets]


@pytest.fixture(scope="module")
def results(target: Target, corpus: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("grid")
    return Ablation(target, corpus, PROMPTS, folder, CONFIG).run(VARIANTS)


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_variant_is_run_with_its_own_settings(results: Path) -> None:
    found = records(results)
    assert [record["variant"] for record in found] == ["plain", "no-head", "wide"]
    for record in found:
        plan = json.loads((results.parent / f"{record['variant']}-seed0" / "plan.json").read_text())
        assert record["steps"] == max(1, round(0.3 / plan["seconds_per_step"]))
        lines = (results.parent / f"{record['variant']}-seed0" / "metrics.jsonl").read_text().splitlines()
        assert json.loads(lines[-1])["step"] == record["steps"]
    assert found[0]["parameters"] < found[2]["parameters"] and "corrected" not in found[1]["held_out"]
    assert set(found[1]["rounds"]["prompts"]) == {"dflash", "ddtree"}


def test_rounds_are_those_of_decoding(target: Target, corpus: list[Path], tmp_path: Path) -> None:
    """A drafter measured as it is, against decoding with it."""
    config = drafter_config(target, "domino", SIZES)
    save_drafter(fresh_model(config, 0), tmp_path / "drafter", target.num_layers)
    start = str(tmp_path / "drafter")
    path = Ablation(target, corpus, PROMPTS, tmp_path / "grid", CONFIG).run([Variant("is", start=start, share=0)])
    (record,) = records(path)
    texts = json.loads((tmp_path / "grid" / "texts.json").read_text())["prompts"]
    drafter = dt.load_drafter(start, target)
    assert texts["groups"] == ["greetings", "questions"] and record["steps"] == 0
    for method in ("domino", "marginal", "dominotree"):
        for index, prompt in enumerate(PROMPTS):
            result = dt.generate(
                prompt.turns[0], target, drafter, method=method, budget=6, candidates=20, max_new_tokens=16
            )
            assert isinstance(result, Result)
            assert record["rounds"]["prompts"][method][index] == len(result.rounds)
            assert record["tokens"]["prompts"][index] == sum(len(one.tokens) for one in result.rounds)


def test_finished_runs_are_kept_and_a_cut_run_goes_on(target: Target, corpus: list[Path], tmp_path: Path) -> None:
    grid = Ablation(target, corpus, PROMPTS, tmp_path, CONFIG)
    path = grid.run(VARIANTS[:1])
    before = path.read_text()
    assert grid.run(VARIANTS[:2]).read_text().startswith(before)
    first = json.loads(before)
    path.write_text("")  # as if the run had been cut before its result was written
    again = records(Ablation(target, corpus, PROMPTS, tmp_path, CONFIG).run(VARIANTS[:1]))[0]
    assert again == first


def test_on_policy_anchors_are_where_rounds_begin(target: Target, corpus: list[Path], tmp_path: Path) -> None:
    config = drafter_config(target, "domino", SIZES)
    save_drafter(fresh_model(config, 0), tmp_path / "drafter", target.num_layers)
    variant = Variant("top-up", start=str(tmp_path / "drafter"), on_policy=40)
    grid = Ablation(target, corpus, [], tmp_path / "grid", CONFIG)
    model = grid._model(variant, config, 0)
    batches = grid._on_policy(model, grid._text[()].train, CONFIG.recipe, 40)
    assert batches.places is not None and len(batches.corpus) == len(batches.places) == 40
    for step in range(20):
        batch = batches(step)
        order = batches._order[step % batches.per_epoch]
        for row, anchors in zip(order, batch.anchors.tolist(), strict=True):
            assert set(anchors) <= set(batches.places[row].tolist())
    for row, places in enumerate(batches.places):
        assert places[0] == batches.corpus.reply[row] and (np.diff(places) > 0).all()
        assert places[-1] < batches.corpus.length[row] - 1
    (record,) = records(grid.run([variant]))
    assert record["harvest_seconds"] >= 0 and record["steps"] >= 1


def test_other_settings_are_refused_in_the_same_folder(target: Target, corpus: list[Path], tmp_path: Path) -> None:
    Ablation(target, corpus, [], tmp_path, CONFIG)
    with pytest.raises(InputError, match="seconds"):
        Ablation(target, corpus, [], tmp_path, AblationConfig(seconds=2.0, recipe=CONFIG.recipe, sizes=SIZES))


def test_the_built_in_grid_fits_the_recipe_and_has_distinct_names() -> None:
    assert len({variant.name for variant in GRID}) == len(GRID)
    for variant in GRID:
        TrainConfig(**variant.recipe)
        DrafterSizes(**variant.sizes)


def test_a_grid_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "grid.json"
    path.write_text('[{"name": "a", "recipe": {"gamma": 4}}, {"name": "b", "kind": "dflash", "files": ["x*"]}]')
    grid = load_grid(path)
    assert grid == (Variant("a", recipe={"gamma": 4}), Variant("b", kind="dflash", files=("x*",)))
    assert choose(grid, ["b"]) == [grid[1]] and choose(grid, None) == list(grid)
    with pytest.raises(InputError, match="no variant 'c'"):
        choose(grid, ["c"])


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "[1]", '[{"nam": "a"}]', '[{"name": "a"}, {"name": "a"}]', '[{"name": "a", "kind": "tree"}]',
     '[{"name": "a/b"}]', '[{"name": "a", "on_policy": 5}]', '[{"name": "a", "recipe": 1}]'],
)  # fmt: skip
def test_a_broken_grid_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "grid.json"
    path.write_text(text)
    with pytest.raises(InputError):
        load_grid(path)
