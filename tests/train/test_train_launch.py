"""Two processes launched on CPUs: held against one that takes both batches and averages the gradients itself."""

import json
import os
import subprocess
import sys
from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from accelerate.commands.launch import launch_command_parser
from safetensors.torch import load_file
from tiny_training import random_rows, tiny_llama, tiny_tokenizer, write_npz
from torch import Tensor
from torch.distributed.run import get_args_parser

from dominotree_lite.checkpoints import load_target
from dominotree_lite.cli import main
from dominotree_lite.train.commands import add_train
from dominotree_lite.train.corpus import Batches, load_corpus
from dominotree_lite.train.loop import TrainConfig
from dominotree_lite.train.losses import BlockLoss, fresh_model
from dominotree_lite.train.processes import own_device
from dominotree_lite.train.recipe import DrafterSizes, drafter_config

ROOT = Path(__file__).resolve().parents[2]
RECIPE = TrainConfig(steps=8, rows=3, anchors=4, learning_rate=3e-3, clip=1.0)
SIZES = DrafterSizes(layers=2, features=2, block=5, gru=8, rank=4)
OPTIONS = (
    "--steps 8 --rows 3 --anchors 4 --learning-rate 3e-3 --evaluate-every 4 --layers 2 --features 2 --block 5"
    " --gru 8 --rank 4 --device cpu --threads 1"
).split()
LAUNCHERS = {
    "accelerate": "accelerate.commands.launch --multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no"
    " --dynamo_backend no --main_process_port 0",
    "torchrun": "torch.distributed.run --standalone --nproc-per-node 2",
}
WATCHED = [str(Path(__file__).with_name("launched.py"))]
COMMAND = ["-m", "dominotree_lite.cli"]


@dataclass(frozen=True)
class Shelf:
    """A target and a text on disk."""

    target: Path
    text: Path

    def arguments(self, kind: str, out: Path, *more: str) -> list[str]:
        return ["train", "drafter", str(self.text), "--target", str(self.target), "--kind", kind, "--out", str(out),
                *OPTIONS, *more]  # fmt: skip


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    folder = tmp_path_factory.mktemp("shelf")
    target = tiny_llama(tokenizer=tiny_tokenizer())
    target.model.save_pretrained(folder / "target")
    target.tokenizer.save_pretrained(folder / "target")
    return Shelf(folder / "target", write_npz(folder / "text.npz", random_rows(300, 261, seed=0), reply=3))


def launch(launcher: str, program: list[str], arguments: list[str], home: Path) -> str:
    """Run two processes to their end; what they print together."""
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "HF_HOME": str(home),  # a user's own configuration of Accelerate lies there
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-m", *LAUNCHERS[launcher].split(), *program, *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True) as launched:
        try:
            printed, complaints = launched.communicate(timeout=100)
        except subprocess.TimeoutExpired:
            launched.terminate()  # unlike a kill, this ends the processes that wait for each other, too
            raise
    assert launched.returncode == 0, complaints
    return printed


# --- against one process -------------------------------------------------------------------------------


def by_hand(shelf: Shelf, kind: str, processes: tuple[int, ...]) -> tuple[dict[str, Tensor], Tensor]:
    """Weights after all steps of plain AdamW on mean gradients, and the last step's mean loss.

    `processes` are those of the two whose batches are taken.
    """
    target = load_target(str(shelf.target), "cpu")
    config = drafter_config(target, kind, SIZES)
    corpus = load_corpus([shelf.text], target.vocab_size)
    batches = Batches(corpus.select((~corpus.held_out()).nonzero()[0]), RECIPE.rows, RECIPE.anchors, 0, "cpu")
    model = fresh_model(config, 0)
    frozen = [part.get_parameter("weight").detach() for part in (target.embedding, target.output)]
    loss = BlockLoss(model, *frozen, RECIPE)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, weight_decay=0.0)
    for step in range(RECIPE.steps):
        optimizer.param_groups[0]["lr"] = RECIPE.rate(step)
        losses, gradients = [], []
        for batch in (batches(2 * step + process) for process in processes):
            reading = target.read(batch.ids, config.target_layer_ids)
            losses.append(loss(reading, batch, RECIPE.base_weight(step))["loss"])
            gradients.append(torch.autograd.grad(losses[-1], parameters))
        for parameter, *parts in zip(parameters, *gradients, strict=True):
            parameter.grad = torch.stack(parts).mean(0)
        torch.nn.utils.clip_grad_norm_(parameters, RECIPE.clip)
        optimizer.step()
    return model.state_dict(), torch.stack(losses).mean().detach()


def furthest(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    return max((a[name] - b[name]).abs().max().item() for name in a)


@pytest.fixture(scope="module")
def straight(shelf: Shelf, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("straight")
    return out, launch("accelerate", WATCHED, shelf.arguments("domino", out), out / "home")


def check_weights(out: Path, shelf: Shelf, kind: str) -> None:
    first, second = (load_file(out / "run" / f"process-{i}.safetensors") for i in (0, 1))
    assert furthest(first, second) == 0
    assert furthest(first, load_file(out / "run" / "checkpoint" / "model.safetensors")) == 0
    assert furthest(first, by_hand(shelf, kind, (0, 1))[0]) < 1e-6
    assert furthest(first, by_hand(shelf, kind, (0,))[0]) > 1e-3


def test_two_processes_step_along_the_mean_gradient(straight: tuple[Path, str], shelf: Shelf) -> None:
    check_weights(straight[0], shelf, "domino")


def test_a_drafter_without_a_head_by_torchrun(shelf: Shelf, tmp_path: Path) -> None:
    launch("torchrun", WATCHED, shelf.arguments("dflash", tmp_path), tmp_path / "home")
    check_weights(tmp_path, shelf, "dflash")


def test_one_process_writes_and_prints(straight: tuple[Path, str], shelf: Shelf) -> None:
    out, printed = straight
    assert printed.splitlines() == [str(out)]
    records = [json.loads(line) for line in (out / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [(r["kind"], r["step"]) for r in records] == [("held_out", 4), ("train", 8), ("held_out", 8)]
    assert records[1]["loss"] == pytest.approx(by_hand(shelf, "domino", (0, 1))[1].item(), rel=1e-5)
    assert json.loads((out / "card.json").read_text())["processes"] == 2
    assert "2 processes of 3 rows a step each" in (out / "README.md").read_text()


# --- stopping and going on -----------------------------------------------------------------------------


def test_time_that_runs_out_in_one_process_stops_both_and_the_next_launch_goes_on(
    straight: tuple[Path, str], shelf: Shelf, tmp_path: Path
) -> None:
    arguments = shelf.arguments("domino", tmp_path)
    printed = launch("torchrun", WATCHED, [*arguments, "--max-seconds", "10"], tmp_path / "home")
    assert "not finished" in printed and len(printed.splitlines()) == 1
    assert 0 < json.loads((tmp_path / "run" / "checkpoint" / "state.json").read_text())["step"] < 8
    halted = [load_file(tmp_path / "run" / f"process-{i}.safetensors") for i in (0, 1)]
    assert furthest(*halted) == 0
    assert launch("accelerate", COMMAND, arguments, tmp_path / "home") == f"{tmp_path}\n"
    ended = [load_file(folder / "run" / "checkpoint" / "model.safetensors") for folder in (tmp_path, straight[0])]
    assert furthest(*ended) == 0


def test_another_number_of_processes_is_refused(
    straight: tuple[Path, str], shelf: Shelf, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shelf.arguments("domino", straight[0])) == 2
    assert "was started by 2 processes" in capsys.readouterr().err


# --- devices -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("launched", "given", "gpus", "own"),
    [
        ({}, None, 2, None),
        ({}, "cuda", 2, "cuda"),
        ({"LOCAL_RANK": "1"}, None, 2, "cuda:1"),
        ({"LOCAL_RANK": "1"}, "cuda", 2, "cuda:1"),
        ({"LOCAL_RANK": "1"}, "cuda:0", 2, "cuda:0"),
        ({"LOCAL_RANK": "1"}, "cpu", 2, "cpu"),
        ({"LOCAL_RANK": "1"}, None, 0, None),
        ({"LOCAL_RANK": "1", "ACCELERATE_USE_CPU": "True"}, None, 2, "cpu"),
    ],
)
def test_a_launched_process_has_its_own_gpu(
    launched: dict[str, str], given: str | None, gpus: int, own: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOCAL_RANK", "ACCELERATE_USE_CPU"):
        monkeypatch.delenv(name, raising=False)
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    assert own_device(given, gpus) == own


@pytest.mark.parametrize("parser", [get_args_parser, launch_command_parser])
def test_no_option_of_the_command_is_taken_for_one_of_the_launchers(parser: Callable[[], ArgumentParser]) -> None:
    """Launchers read the whole line and refuse what could be short for several of their own options."""
    command = ArgumentParser()
    add_train(command.add_subparsers())
    drafter = _stages(_stages(command)["train"])["drafter"]
    options = [text for action in drafter._actions for text in action.option_strings if text.startswith("--")]
    assert len(options) > 20
    for option in options:
        line = ["-m", "dominotree_lite.cli", "train", "drafter", "text", option, "1"]
        assert parser().parse_args(line).training_script_args == line[2:]


def _stages(parser: ArgumentParser) -> dict[str, ArgumentParser]:
    found = [action for action in parser._actions if isinstance(action, _SubParsersAction)]
    return found[0].choices
