"""The training loop: schedule, optimiser, metrics, held-out losses, and checkpoints that resume exactly.

Runs on Hugging Face Accelerate (bf16 autocast over float32 weights where the device has it), on the device the
target lies on. Launched as several processes, each takes its own batches and gradients are averaged; the main one
writes. It does not know the command line or how text was written. Recipe: AdamW, warm-up and cosine
(DFlash, arXiv 2602.06036, section 5); the weight of the base loss falls linearly from 1 (Domino, arXiv
2605.29707, section 4.3), here to a floor, so that the base, which proposes a tree's candidates, is trained to
the end.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from tqdm import tqdm  # not auto: in a notebook, its bar would be a widget that no stored page can show

from ..drafter import DraftModel
from ..errors import InputError
from ..files import write_text
from ..target import Reading
from .corpus import Batch, Batches
from .losses import BlockLoss, LossConfig
from .processes import as_main_says, join

Read = Callable[[Tensor], Reading]  # what the target makes of ids [B, S]


@dataclass(frozen=True, kw_only=True)
class TrainConfig(LossConfig):
    """Settings of a run; every one that changes the losses is here. Defaults are the shipped recipe.

    lambda, the weight of the base loss, falls from `base_start` to `base_floor` over the fraction `base_decay` of the
    steps: 1 to 0 as published, 0 to 0 for no curriculum, 1 to 1 for the base alone. The last two fields follow the
    device in `train_drafter`.
    """

    steps: int = 11_500
    rows: int = 48
    anchors: int = 32
    learning_rate: float = 1e-3
    warmup: float = 0.04
    base_start: float = 1.0
    base_floor: float = 0.1
    base_decay: float = 0.8
    clip: float = 1.0
    seed: int = 0
    mixed_precision: str = "no"
    fuse_losses: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.steps, self.rows, self.anchors) < 1 or self.learning_rate <= 0:
            raise InputError("steps, rows, anchors and learning_rate must be positive")
        if not 0 <= self.seed < 2**63:
            raise InputError(f"seed {self.seed}: give 0 or more, below 2^63")
        if not (0 <= self.base_floor <= self.base_start <= 1 and 0 < self.base_decay <= 1 and 0 <= self.warmup < 1):
            raise InputError("base_start, base_floor (no larger), base_decay and warmup are fractions of one")

    def rate(self, step: int) -> float:
        """Learning rate at a step: linear warm-up, then a cosine to 0."""
        warmup = max(1, round(self.warmup * self.steps))
        if step < warmup:
            return self.learning_rate * (step + 1) / warmup
        share = (step - warmup) / max(1, self.steps - warmup)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * share))

    def base_weight(self, step: int) -> float:
        """lambda at a step: linear from `base_start` to `base_floor`."""
        share = min(1.0, step / (self.base_decay * self.steps))
        return self.base_start - (self.base_start - self.base_floor) * share


class Training:
    """A run in a folder: `metrics.jsonl`, `checkpoint/`. Start it, stop it anywhere, start it again."""

    def __init__(
        self,
        model: DraftModel,
        embedding: Tensor,
        output: Tensor,
        read: Read,
        config: TrainConfig,
        folder: Path,
    ) -> None:
        self.accelerator = join(config.mixed_precision, embedding.device)
        self.config, self.folder, self.read, self.bare = config, folder, read, model
        self.step, self.seconds = 0, 0.0
        loss = BlockLoss(model, embedding, output, config)
        if config.fuse_losses:
            loss.compile()
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=config.learning_rate, weight_decay=0.0, fused=embedding.is_cuda
        )
        self.loss: nn.Module = loss
        self.loss, self.optimizer = self.accelerator.prepare(loss, optimizer)
        folder.mkdir(parents=True, exist_ok=True)
        self._restore()
        self.accelerator.wait_for_everyone()  # none may save while another still reads

    def run(
        self,
        batches: Batches,
        held_out: Batches,
        evaluate_every: int = 1000,
        max_seconds: float = math.inf,
        evaluate_batches: int = 8,
    ) -> bool:
        """Train to the end or for `max_seconds` of wall time; True when all steps are done.

        Every `evaluate_every` steps: a checkpoint, and a measurement on at most `evaluate_batches` held-out batches.
        """
        if evaluate_every < 1:
            raise InputError(f"evaluate_every {evaluate_every}: give the steps between checkpoints, 1 or more")
        began, already = time.perf_counter(), self.seconds
        silent = None if self.accelerator.is_main_process else True  # None: shown on a terminal
        bar = tqdm(total=self.config.steps, initial=self.step, unit="step", disable=silent, dynamic_ncols=True)
        while self.step < self.config.steps and not self._late(began, max_seconds):
            losses = self.take(batches(self._share(self.step)))
            self.step += 1
            bar.update()
            self.seconds = already + time.perf_counter() - began
            if self.step % 50 == 0 or self.step == self.config.steps:
                losses = self._over_processes(losses)
                bar.set_postfix(loss=f"{losses['loss'].item():.3f}")
                self._log("train", losses)
            if self.step % evaluate_every == 0 or self.step == self.config.steps:
                self._log("held_out", self.evaluate(held_out, evaluate_batches))
                self.save()
        bar.close()
        self.save()
        return self.step == self.config.steps

    def _late(self, began: float, max_seconds: float) -> bool:
        late = time.perf_counter() - began >= max_seconds
        return late if max_seconds == math.inf else as_main_says(self.accelerator, late)

    @torch.no_grad()
    def _over_processes(self, losses: dict[str, Tensor]) -> dict[str, Tensor]:
        """Mean losses of all processes' batches, in every process: the mean loss is what a step minimises."""
        means: dict[str, Tensor] = self.accelerator.reduce(losses, "mean")
        return means

    def _share(self, step: int) -> int:
        """Which batch of the stream this process takes at a step."""
        return step * self.accelerator.num_processes + self.accelerator.process_index

    def take(self, batch: Batch) -> dict[str, Tensor]:
        """One optimiser step on a batch; what the loss was before it."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.rate(self.step)
        losses = self.loss(self.read(batch.ids), batch, self.config.base_weight(self.step))
        self.accelerator.backward(losses["loss"])
        self.accelerator.clip_grad_norm_(self.bare.parameters(), self.config.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return losses

    @torch.no_grad()
    def evaluate(self, held_out: Batches, limit: int = 8) -> dict[str, Tensor]:
        """Means of `BlockLoss.measure` over at most `limit` batches.

        Random anchors flatter (long easy stretches are hit more often): decoding's own tau is lower.
        """
        loss: BlockLoss = self.accelerator.unwrap_model(self.loss)
        with self.accelerator.autocast():
            found = [loss.measure(self.read(batch.ids), batch) for batch in held_out.in_order(limit)]
        return {key: torch.stack([each[key] for each in found]).mean() for key in found[0]}

    def _log(self, kind: str, losses: dict[str, Tensor]) -> None:
        if not self.accelerator.is_main_process:
            return
        record = {"kind": kind, "step": self.step, "seconds": round(self.seconds, 3)}
        record |= {"rate": self.config.rate(self.step), "base_weight": self.config.base_weight(self.step)}
        record |= {key: value.item() for key, value in losses.items()}
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")

    def save(self) -> None:
        """Write `checkpoint/` whole or not at all: a new folder beside it takes its name last."""
        if not self.accelerator.is_main_process:
            return
        new, old, final = (self.folder / name for name in ("checkpoint.new", "checkpoint.old", "checkpoint"))
        # Killed between the two renames, `old` is the only checkpoint: it must outlive the write.
        for leftover in (new, old) if final.exists() else (new,):
            shutil.rmtree(leftover, ignore_errors=True)
        new.mkdir()
        save_file(dict(self.bare.state_dict()), new / "model.safetensors")
        save_file(self._moments(), new / "optimizer.safetensors")
        state = {"step": self.step, "seconds": self.seconds, "config": asdict(self.config)}
        state["processes"] = self.accelerator.num_processes
        (new / "state.json").write_text(json.dumps(state))
        if final.exists():
            os.rename(final, old)
        os.rename(new, final)
        shutil.rmtree(old, ignore_errors=True)

    def _moments(self) -> dict[str, Tensor]:
        """Adam's two moments, named after their parameters."""
        state = self.optimizer.optimizer.state
        return {
            f"{name}.{moment}": state[parameter][moment].contiguous()
            for name, parameter in self.bare.named_parameters()
            for moment in ("exp_avg", "exp_avg_sq")
            if parameter in state
        }

    def _restore(self) -> None:
        """Continue from `checkpoint/` (or `checkpoint.old/` after a kill between the two renames)."""
        found = [self.folder / name for name in ("checkpoint", "checkpoint.old")]
        folder = next((path for path in found if (path / "state.json").exists()), None)
        if folder is None:
            self._drop_metrics_after(0)
            return
        state = json.loads((folder / "state.json").read_text())
        if state["config"] != asdict(self.config):
            raise InputError(f"{folder}: was started with other settings; use them or another folder")
        if state.get("processes", 1) != self.accelerator.num_processes:  # each step would see other batches
            raise InputError(f"{folder}: was started by {state.get('processes', 1)} processes; launch as many again")
        self.step, self.seconds = state["step"], state["seconds"]
        self._drop_metrics_after(self.step)
        device = str(next(self.bare.parameters()).device)
        self.bare.load_state_dict(load_file(folder / "model.safetensors", device=device))
        moments = load_file(folder / "optimizer.safetensors", device=device)
        for name, parameter in self.bare.named_parameters():
            if f"{name}.exp_avg" in moments:
                self.optimizer.optimizer.state[parameter] = {
                    "step": torch.tensor(float(self.step), device=device if parameter.is_cuda else None),
                    "exp_avg": moments[f"{name}.exp_avg"],
                    "exp_avg_sq": moments[f"{name}.exp_avg_sq"],
                }

    def _drop_metrics_after(self, step: int) -> None:
        """Forget what a killed run recorded past its checkpoint: those steps are done again."""
        path = self.folder / "metrics.jsonl"
        if not self.accelerator.is_main_process or not path.exists():
            return
        kept = [line for line in path.read_text().splitlines() if _step_of(line) <= step]
        write_text(path, "".join(line + "\n" for line in kept))


def _step_of(line: str) -> float:
    """The step of a metrics record; infinity for a line that a kill cut short."""
    try:
        return json.loads(line)["step"]
    except ValueError:
        return math.inf
