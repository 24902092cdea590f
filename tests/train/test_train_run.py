"""From a target's own text to a drafter that decodes: the whole way on a tiny Qwen3-type model."""

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_training import random_rows, tiny_config, tiny_llama, tiny_qwen3, write_npz

import dominotree_lite as dt
from dominotree_lite.checkpoints import config_json, parse_config
from dominotree_lite.drafter import DrafterConfig
from dominotree_lite.errors import InputError
from dominotree_lite.target import Target
from dominotree_lite.train.author import CorpusConfig, write_corpus
from dominotree_lite.train.corpus import load_corpus
from dominotree_lite.train.loop import TrainConfig
from dominotree_lite.train.recipe import DrafterSizes, drafter_config
from dominotree_lite.train.run import train_drafter

RECIPE = TrainConfig(steps=6, rows=4, anchors=4, learning_rate=3e-3)
SIZES = DrafterSizes(layers=1, features=2, block=5, gru=8, rank=4)


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_qwen3()


@pytest.fixture(scope="module")
def corpus(target: Target, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    settings = CorpusConfig(
        rows=500, row_length=80, user_length=6, template_share=0.0, shard_rows=250, batch=250, seed=2
    )
    return write_corpus(target, tmp_path_factory.mktemp("corpus"), settings)


@pytest.mark.parametrize("kind", ["domino", "dflash"])
def test_a_drafter_for_a_qwen3_target_from_nothing(
    kind: str, target: Target, corpus: list[Path], tmp_path: Path
) -> None:
    config = drafter_config(target, kind, SIZES)
    assert train_drafter(target, corpus, tmp_path, config, RECIPE)
    drafter = dt.load_drafter(str(tmp_path), target)
    assert drafter.kind == kind and drafter.horizon == (5 if kind == "domino" else 4)
    for prompt in ("Why?", [5, 70, 80, 90]):
        plain = dt.generate(prompt, target, None, method="ar", max_new_tokens=24)
        for method in {"domino": ("domino", "dominotree"), "dflash": ("dflash", "ddtree")}[kind]:
            result = dt.generate(prompt, target, drafter, method=method, budget=8, max_new_tokens=24)
            assert result.token_ids == plain.token_ids
    check_card(tmp_path, target, corpus, config)


def check_card(folder: Path, target: Target, corpus: list[Path], config: DrafterConfig) -> None:
    card = json.loads((folder / "card.json").read_text())
    text = load_corpus(corpus, target.vocab_size)
    assert [file["sha256"] for file in card["data"]] == [hashlib.sha256(p.read_bytes()).hexdigest() for p in corpus]
    assert sum(file["rows"] for file in card["data"]) == len(text)
    assert sum(file["tokens"] for file in card["data"]) == text.length.sum()
    assert card["held_out_rows"] == text.held_out().sum() > 0
    assert card["recipe"]["steps"] == 6 and card["seconds"] > 0 and card["kind"] == config.kind
    drafter = dt.load_drafter(str(folder), target)
    assert card["parameters"] == sum(p.numel() for p in drafter.model.parameters())
    assert math.isfinite(card["held_out"]["base"]) and card["held_out"]["tau"] >= 1
    readme = (folder / "README.md").read_text()
    assert target.name in readme and f"{len(text):,} rows" in readme and card["data"][0]["sha256"] in readme


def test_the_written_drafter_is_the_trained_one(target: Target, corpus: list[Path], tmp_path: Path) -> None:
    config = drafter_config(target, "domino", SIZES)
    train_drafter(target, corpus, tmp_path, config, RECIPE)
    raw = json.loads((tmp_path / "config.json").read_text())
    assert config_json(parse_config(raw, target.num_layers), target.num_layers) == config_json(config, 4) == raw
    trained = load_file(tmp_path / "run" / "checkpoint" / "model.safetensors")
    loaded = dict(dt.load_drafter(str(tmp_path), target).model.named_parameters())
    assert trained.keys() == loaded.keys()
    for name, value in trained.items():
        assert torch.equal(value.bfloat16().float(), loaded[name])


def test_a_run_out_of_time_goes_on_and_gives_the_same_drafter(
    target: Target, corpus: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = drafter_config(target, "domino", SIZES)
    assert train_drafter(target, corpus, tmp_path / "straight", config, RECIPE)
    assert not train_drafter(target, corpus, tmp_path / "halting", config, RECIPE, max_seconds=0.0)
    assert not (tmp_path / "halting" / "config.json").exists()
    assert train_drafter(target, corpus, tmp_path / "halting", config, RECIPE)
    straight, halting = (dt.load_drafter(str(tmp_path / name), target).model for name in ("straight", "halting"))
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), halting.parameters(), strict=True))


# --- refusals -------------------------------------------------------------------------------------------


def written(path: Path, vocabulary: int = 100, **settings: Any) -> list[Path]:
    return [write_npz(path, random_rows(400, vocabulary, seed=0, **settings), reply=3)]


def test_going_on_with_something_else_is_refused(target: Target, corpus: list[Path], tmp_path: Path) -> None:
    config = drafter_config(target, "domino", SIZES)
    train_drafter(target, corpus, tmp_path, config, RECIPE, max_seconds=0.0)
    with pytest.raises(InputError, match="begun with other drafter"):
        train_drafter(target, corpus, tmp_path, replace(config, mask_token_id=3), RECIPE)
    with pytest.raises(InputError, match="begun with other corpus"):
        train_drafter(target, corpus[:1], tmp_path, config, RECIPE)
    with pytest.raises(InputError, match="begun with other target"):
        other = Target(target.model, target.tokenizer, "another")
        train_drafter(other, corpus, tmp_path, config, RECIPE)
    with pytest.raises(InputError, match="other settings"):
        train_drafter(target, corpus, tmp_path, config, replace(RECIPE, steps=7))


def test_too_little_text_is_refused(target: Target, tmp_path: Path) -> None:
    config = drafter_config(target, "domino", SIZES)
    few = [write_npz(tmp_path / "few.npz", [[i] * 12 for i in range(5)], reply=3)]
    with pytest.raises(InputError, match="5 rows of text are too few"):
        train_drafter(target, few, tmp_path / "drafter", config, RECIPE)
    with pytest.raises(InputError, match="a batch needs 1000"):
        train_drafter(target, written(tmp_path / "a.npz"), tmp_path / "b", config, replace(RECIPE, rows=1000))


def test_rows_beyond_the_targets_positions_are_refused(target: Target, tmp_path: Path) -> None:
    text = written(tmp_path / "a.npz", lengths=(250, 270))
    with pytest.raises(InputError, match="beyond the 256 positions"):
        train_drafter(target, text, tmp_path / "drafter", drafter_config(target, "domino", SIZES), RECIPE)


def test_a_layout_for_another_target_is_refused(target: Target, tmp_path: Path) -> None:
    text = written(tmp_path / "a.npz", vocabulary=10)
    with pytest.raises(InputError, match="not those of tiny-qwen3"):
        train_drafter(target, text, tmp_path / "drafter", tiny_config(), RECIPE)
    last = replace(drafter_config(target, "domino", SIZES), target_layer_ids=(1, 3))
    with pytest.raises(InputError, match="can read layers up to 2"):
        train_drafter(target, text, tmp_path / "drafter", last, RECIPE)


class Scaled(torch.nn.Embedding):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(ids) * 2


def test_targets_with_more_than_plain_matrices_are_refused(tmp_path: Path) -> None:
    text = written(tmp_path / "a.npz")
    scaled, biased = tiny_llama(), tiny_llama()
    scaled.embedding = Scaled.from_pretrained(scaled.embedding.get_parameter("weight"))
    biased.output = torch.nn.Linear(32, biased.vocab_size, bias=True)
    for target in (scaled, biased):
        config = drafter_config(target, "domino", SIZES, mask_token_id=3)
        with pytest.raises(InputError, match="scales its embedding or biases its logits"):
            train_drafter(target, text, tmp_path / "drafter", config, RECIPE)


def test_training_goes_on_from_a_drafter(target: Target, corpus: list[Path], tmp_path: Path) -> None:
    config = drafter_config(target, "domino", SIZES)
    train_drafter(target, corpus, tmp_path / "first", config, RECIPE)
    start = str(tmp_path / "first")
    hardly = replace(RECIPE, steps=1, learning_rate=1e-12)
    assert train_drafter(target, corpus, tmp_path / "second", config, hardly, start=start)
    first, second = (dt.load_drafter(str(tmp_path / name), target).model.state_dict() for name in ("first", "second"))
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert json.loads((tmp_path / "second" / "card.json").read_text())["recipe"]["started from"] == start
    wider = drafter_config(target, "domino", replace(SIZES, gru=9))
    with pytest.raises(InputError, match="another layout"):
        train_drafter(target, corpus, tmp_path / "third", wider, hardly, start=start)
    with pytest.raises(InputError, match="start"):
        train_drafter(target, corpus, tmp_path / "second", config, hardly)
