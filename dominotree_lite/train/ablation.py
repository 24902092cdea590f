"""The grid run: every variant trained for the same seconds on the same text, then walked over known texts.

How many steps a variant gets is measured first (a few steps of its own, thrown away), so that its schedules end when
its seconds do. Results are a JSON object a run and line; finished runs are not made again. This file does not know
what the variants mean or how a table is drawn.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..checkpoints import load_drafter
from ..drafter import DrafterConfig, DraftModel
from ..errors import InputError
from ..files import write_json, write_text
from ..prompts import PromptRow
from ..target import Target
from .blocks import Blocks
from .card import device_name
from .corpus import Batch, Batches, Corpus
from .folder import claim
from .grid import Variant
from .loop import TrainConfig, Training
from .reader import Reader
from .recipe import DrafterSizes, drafter_config
from .run import Text, divide, initial_model, on_device
from .texts import KnownText, batches, of_corpus, of_prompts
from .walk import WALKS, TreeSize, walk

WARM_UP_STEPS, TIMED_STEPS = 20, 40
RESULTS, TEXTS = "results.jsonl", "texts.json"


@dataclass(frozen=True)
class AblationConfig:
    """What all runs share.

    Attributes:
        seconds: of training a run, measurements not counted.
        seeds: runs of every variant, with seeds `first_seed`, `first_seed` + 1, ...
        recipe: what the variants change; its `steps` and `seed` are set by the run.
        sizes: likewise.
        evaluations: measurements on held-out rows over a run.
        held_out_texts: held-out rows walked.
        new_tokens: length of the answers walked.
        tree: budget and candidates of the trees walked.
    """

    seconds: float = 90.0
    seeds: int = 1
    first_seed: int = 0
    recipe: TrainConfig = field(default_factory=TrainConfig)
    sizes: DrafterSizes = field(default_factory=DrafterSizes)
    evaluations: int = 6
    held_out_texts: int = 256
    new_tokens: int = 128
    tree: TreeSize = field(default_factory=TreeSize)

    def __post_init__(self) -> None:
        if self.seconds <= 0 or min(self.seeds, self.evaluations, self.held_out_texts, self.new_tokens - 1) < 1:
            raise InputError("ablation: seconds, seeds, evaluations and texts must be positive, new_tokens 2 or more")
        if self.first_seed < 0:
            raise InputError(f"ablation: first seed {self.first_seed}: give 0 or more")


class Ablation:
    """A grid in a folder: `results.jsonl`, `texts.json`, and a folder a run with its metrics."""

    def __init__(
        self,
        target: Target,
        corpus_paths: Sequence[Path],
        prompts: Sequence[PromptRow],
        folder: Path,
        config: AblationConfig,
    ) -> None:
        recipe = on_device(config.recipe, target.device)
        self.target, self.paths, self.folder = target, list(corpus_paths), folder
        self.config = replace(config, recipe=recipe)
        text = divide(target, self.paths)
        claim(folder, {"target": target.name, "corpus": [f.sha256 for f in text.files], **asdict(self.config)})
        self.held_out = text.held_out
        self.texts = {
            "held-out": of_corpus(text.held_out, config.held_out_texts),
            "prompts": of_prompts(target, prompts, config.new_tokens),
        }
        write_json(folder / TEXTS, {name: _described(texts) for name, texts in self.texts.items() if texts})
        self.reader: Reader | None = None
        self._text: dict[tuple[str, ...], Text] = {(): text}

    def run(self, variants: Sequence[Variant]) -> Path:
        """Run what is missing of these variants and return the file of results."""
        path = self.folder / RESULTS
        done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        finished = {(record["variant"], record["seed"]) for record in done}
        for seed in range(self.config.first_seed, self.config.first_seed + self.config.seeds):
            for variant in variants:
                if (variant.name, seed) not in finished:
                    done.append(self._run(variant, seed))
                    write_text(path, "".join(json.dumps(record) + "\n" for record in done))
        return path

    def _run(self, variant: Variant, seed: int) -> dict[str, Any]:
        folder = self.folder / f"{variant.name}-seed{seed}"
        text = self._text_of(variant)
        config, recipe = self._config(variant), replace(self.config.recipe, **variant.recipe, seed=seed)
        batches = Batches(text.train, recipe.rows, recipe.anchors, seed, self.target.device)
        model = self._model(variant, config, seed)
        began = time.perf_counter()
        if variant.on_policy:
            batches = self._on_policy(model, text.train, recipe, variant.on_policy)
        harvest = time.perf_counter() - began
        training = None
        if variant.share:
            steps = self._steps(folder, variant, config, recipe, batches)
            training = self._training(model, config, replace(recipe, steps=steps), folder)
            every = max(1, steps // self.config.evaluations)
            training.run(batches, self._held_out(recipe), every, evaluate_batches=2)
        return {
            "variant": variant.name,
            "seed": seed,
            **{key: value for key, value in asdict(variant).items() if key != "name"},
            "steps": training.step if training else 0,
            "seconds": round(self.config.seconds * variant.share, 1),
            "harvest_seconds": round(harvest, 1),
            "parameters": sum(p.numel() for p in model.parameters()),
            "device": device_name(self.target.device),
            **self._measured(model, config, recipe),
        }

    # --- what a variant trains ----------------------------------------------------------------------------------

    def _text_of(self, variant: Variant) -> Text:
        if variant.files not in self._text:
            chosen = [path for path in self.paths if any(fnmatch(path.name, pattern) for pattern in variant.files)]
            if not chosen:
                raise InputError(f"variant {variant.name}: no corpus file is called {' or '.join(variant.files)}")
            self._text[variant.files] = divide(self.target, chosen)
        return self._text[variant.files]

    def _config(self, variant: Variant) -> DrafterConfig:
        if variant.start:
            return load_drafter(variant.start, self.target).config
        return drafter_config(self.target, variant.kind, replace(self.config.sizes, **variant.sizes))

    def _model(self, variant: Variant, config: DrafterConfig, seed: int) -> DraftModel:
        return initial_model(self.target, config, seed, variant.start)

    def _training(self, model: DraftModel, config: DrafterConfig, recipe: TrainConfig, folder: Path) -> Training:
        matrices = _matrix(self.target.embedding), _matrix(self.target.output)
        return Training(model, *matrices, self._reader(config.target_layer_ids), recipe, folder)

    def _reader(self, layer_ids: tuple[int, ...]) -> Reader:
        if self.reader is None or self.reader.layer_ids != layer_ids:
            self.reader = Reader(self.target, layer_ids)
        return self.reader

    def _steps(
        self, folder: Path, variant: Variant, config: DrafterConfig, recipe: TrainConfig, batches: Batches
    ) -> int:
        """Steps that fit the seconds, by this variant's own speed; noted, so that a run goes on with as many."""
        plan = folder / "plan.json"
        if plan.exists():
            return int(json.loads(plan.read_text())["steps"])
        with tempfile.TemporaryDirectory() as scratch:
            training = self._training(self._model(variant, config, recipe.seed), config, recipe, Path(scratch))
            times = [self._timed(training, batches(step)) for step in range(WARM_UP_STEPS + TIMED_STEPS)]
        each = fmean(times[WARM_UP_STEPS:])
        steps = max(1, round(self.config.seconds * variant.share / each))
        folder.mkdir(parents=True, exist_ok=True)
        write_json(plan, {"steps": steps, "seconds_per_step": each})
        return steps

    def _timed(self, training: Training, batch: Batch) -> float:
        """Seconds of one step."""
        self.target.synchronize()
        began = time.perf_counter()
        training.take(batch)
        self.target.synchronize()
        return time.perf_counter() - began

    def _on_policy(self, model: DraftModel, corpus: Corpus, recipe: TrainConfig, rows: int) -> Batches:
        """Batches of some rows, anchored where the chain of this very drafter begins its rounds."""
        chosen = corpus.select(np.random.default_rng(recipe.seed).permutation(len(corpus))[:rows])
        chain = "domino" if model.config.head else "dflash"
        walked = self._walk(model, of_corpus(chosen, rows), chain, recipe)
        places = [np.array([place for place in row if place >= 0]) for row in walked["anchors"]]
        device = self.target.device
        return Batches(chosen, recipe.rows, recipe.anchors, recipe.seed, device, places)

    # --- measuring ------------------------------------------------------------------------------------------------

    def _held_out(self, recipe: TrainConfig) -> Batches:
        rows = min(recipe.rows, len(self.held_out))
        return Batches(self.held_out, rows, recipe.anchors, 0, self.target.device)

    def _measured(self, model: DraftModel, config: DrafterConfig, recipe: TrainConfig) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as scratch:
            training = self._training(model, config, recipe, Path(scratch))
            means = training.evaluate(self._held_out(recipe))
        walks = {
            name: {method: self._walk(model, texts, method, recipe)["rounds"] for method in WALKS[config.kind]}
            for name, texts in self.texts.items()
            if texts
        }
        tokens = {name: [text.drafted for text in texts] for name, texts in self.texts.items() if texts}
        return {"held_out": {key: value.item() for key, value in means.items()}, "tokens": tokens, "rounds": walks}

    @torch.no_grad()
    def _walk(
        self, model: DraftModel, texts: Sequence[KnownText], method: str, recipe: TrainConfig
    ) -> dict[str, list[Any]]:
        """Rounds of every text, and the anchors of each."""
        target = self.target
        blocks = Blocks(model, _matrix(target.embedding), _matrix(target.output))
        found: dict[str, list[Any]] = {"rounds": [], "anchors": []}
        with torch.autocast(target.device.type, torch.bfloat16, enabled=recipe.mixed_precision == "bf16"):
            for batch in batches(texts, target.device):
                features = target.read(batch.ids, model.config.target_layer_ids).features
                walked = walk(blocks, features, batch, method, self.config.tree)
                found["rounds"] += walked.rounds.tolist()
                found["anchors"] += walked.anchors.tolist()
        return found


def _matrix(part: nn.Module) -> Tensor:
    return part.get_parameter("weight").detach()


def _described(texts: Sequence[KnownText]) -> dict[str, list[Any]]:
    return {
        "names": [text.name for text in texts],
        "groups": [text.group for text in texts],
    }
