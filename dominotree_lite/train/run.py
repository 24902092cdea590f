"""From text to a finished drafter in a folder: the one function behind `dominotree train`.

It joins corpus, recipe, loop and card, and knows none of their insides.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..checkpoints import config_json, load_drafter, save_drafter
from ..drafter import DrafterConfig, DraftModel
from ..errors import InputError
from ..target import Target
from .card import Card, CorpusFile, describe_file, device_name, write_card
from .corpus import Batches, Corpus, load_corpus
from .folder import claim
from .loop import TrainConfig, Training
from .losses import fresh_model
from .processes import join
from .reader import Reader

RUN = "run"  # the subfolder of checkpoints and metrics


@dataclass(frozen=True)
class Text:
    """A corpus divided: rows to train on, rows to measure on, and the files it came from."""

    train: Corpus
    held_out: Corpus
    files: list[CorpusFile]


def train_drafter(
    target: Target,
    corpus_paths: list[Path],
    folder: Path,
    config: DrafterConfig,
    recipe: TrainConfig,
    evaluate_every: int = 1000,
    max_seconds: float = math.inf,
    start: str | None = None,
) -> bool:
    """Train a drafter and write it to `folder`, with its card; True when it is finished.

    It begins with the weights of the drafter `start` (shipped, folder or hub id), which must have this layout, else
    fresh.
    False means that `max_seconds` of wall time passed first: the same call goes on from there, as it does
    after a kill. `folder/run` holds metrics.jsonl and the checkpoint, written every `evaluate_every` steps.
    Launched as several processes, each calls this with the target on its own device and takes `recipe.rows` rows
    a step of its own: a step sees that many times the number of processes. The main process writes.
    bf16 autocast and fused losses on CUDA, plain float32 elsewhere, whatever `recipe` says of these two.
    Raises InputError for text, settings or a target that do not fit.
    """
    _check_fit(target, config)
    recipe = on_device(recipe, target.device)
    text = divide(target, corpus_paths)
    layout = config_json(config, target.num_layers)
    if join(recipe.mixed_precision, target.device).is_main_process:
        begun = {"target": target.name, "drafter": layout, "corpus": [f.sha256 for f in text.files], "start": start}
        claim(folder / RUN, begun)
    model = initial_model(target, config, recipe.seed, start)
    training = Training(
        model,
        target.embedding.get_parameter("weight").detach(),
        target.output.get_parameter("weight").detach(),
        Reader(target, config.target_layer_ids),
        recipe,
        folder / RUN,
    )
    rows = min(recipe.rows, len(text.held_out))
    done = training.run(
        Batches(text.train, recipe.rows, recipe.anchors, recipe.seed, target.device),
        Batches(text.held_out, rows, recipe.anchors, recipe.seed, target.device),
        evaluate_every,
        max_seconds,
    )
    if done and training.accelerator.is_main_process:
        save_drafter(model, folder, target.num_layers)
        write_card(folder, _card(target, config, text, training, start))
    training.accelerator.wait_for_everyone()
    return done


def initial_model(target: Target, config: DrafterConfig, seed: int, start: str | None) -> DraftModel:
    """A fresh model on the target's device, or one with the weights of the drafter `start`.

    Raises InputError if that one has another layout.
    """
    model = fresh_model(config, seed)
    if start:
        found = load_drafter(start, target)
        if config_json(found.config, target.num_layers) != config_json(config, target.num_layers):
            raise InputError(f"drafter {start} has another layout than the one to train")
        model.load_state_dict(found.model.state_dict())
    return model.to(target.device)


def on_device(recipe: TrainConfig, device: torch.device) -> TrainConfig:
    """The recipe in bf16 with fused losses on a GPU, in plain float32 elsewhere."""
    on_gpu = device.type == "cuda"
    return replace(recipe, mixed_precision="bf16" if on_gpu else "no", fuse_losses=on_gpu)


@torch.no_grad()
def _check_fit(target: Target, config: DrafterConfig) -> None:
    """Refuse what would train without complaint and then draft something else than was learnt."""
    backbone = config.backbone
    if (backbone.vocab_size, backbone.hidden_size) != (target.vocab_size, target.hidden_size):
        raise InputError(f"the drafter's vocabulary and hidden size are not those of {target.name}")
    if config.target_layer_ids[-1] > target.num_layers - 2:
        raise InputError(f"a drafter of {target.name} can read layers up to {target.num_layers - 2}")
    ids = torch.tensor([0, target.vocab_size - 1], device=target.device)
    plain_lookup = torch.equal(target.embedding(ids), target.embedding.get_parameter("weight")[ids])
    if not plain_lookup or getattr(target.output, "bias", None) is not None:
        raise InputError(f"{target.name} scales its embedding or biases its logits: training reads neither")


def divide(target: Target, paths: list[Path]) -> Text:
    """Read the text; rows chosen by hash are held out, and of these the greedy ones measured on."""
    corpus = load_corpus(paths, target.vocab_size)
    files = [describe_file(path, target.vocab_size) for path in paths]
    if len(corpus) and int(corpus.length.max()) > target.max_positions:
        raise InputError(f"the text has rows beyond the {target.max_positions} positions of {target.name}")
    held = corpus.held_out()
    greedy = held & (corpus.temperature == 0)
    if not held.any():
        raise InputError(f"{len(corpus)} rows of text are too few: none falls among those held out")
    measured = corpus.select(np.flatnonzero(greedy if greedy.any() else held))
    return Text(corpus.select(np.flatnonzero(~held)), measured, files)


def _card(target: Target, config: DrafterConfig, text: Text, training: Training, start: str | None) -> Card:
    lines = (training.folder / "metrics.jsonl").read_text().splitlines()
    last: dict[str, Any] = [r for r in map(json.loads, lines) if r["kind"] == "held_out"][-1]
    shown = ("base", "corrected", "base_tau", "tau")
    backbone = config.backbone
    return Card(
        target=target.name,
        kind=config.kind,
        parameters=sum(p.numel() for p in training.bare.parameters()),
        layout={
            "block_size": config.block_size,
            "layers": backbone.num_hidden_layers,
            "intermediate": backbone.intermediate_size,
            "features from layers": list(config.target_layer_ids),
            "mask token": config.mask_token_id,
            "shift_label": config.shift_label,
            **({} if config.head is None else asdict(config.head)),
        },
        data=text.files,
        held_out_rows=sum(f.rows for f in text.files) - len(text.train),
        recipe=asdict(training.config) | ({"started from": start} if start else {}),
        seconds=round(training.seconds, 3),
        device=device_name(target.device),
        processes=training.accelerator.num_processes,
        held_out={key: last[key] for key in shown if key in last},
    )
