"""The commands `dominotree train corpus | drafter | ablate`: parse, call, print. They compute nothing."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..arguments import Commands, Parser, add_command, add_device, add_target, load_target_of

if TYPE_CHECKING:
    from .recipe import DrafterSizes


def add_train(commands: Commands[Parser]) -> None:
    text = "write training text with a target, or train a drafter on such text"
    stages = commands.add_parser("train", help=text, description=text).add_subparsers(required=True, metavar="STAGE")
    _add_train_corpus(stages)
    _add_train_drafter(stages)
    _add_train_ablate(stages)


def _add_train_corpus(stages: Commands[Parser]) -> None:
    text = "the target writes questions and answers them; goes on where an interrupted call stopped"
    parser = add_command(stages, "corpus", _train_corpus, text)
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="FOLDER", help="where corpus-00000.npz, ... go")
    add("--rows", type=int, default=4096, metavar="N", help="conversations to write")
    add("--row-length", type=int, default=512, metavar="N", help="tokens of a conversation at most")
    add("--user-length", type=int, default=256, metavar="N", help="tokens of the user's turn at most")
    add(
        "--template-share",
        type=float,
        default=0.6,
        metavar="P",
        help="share of questions made up from templates, 0 to 1",
    )
    add(
        "--opening-share", type=float, default=0.6, metavar="P", help="of the others, share whose first words are given"
    )
    add("--greedy-share", type=float, default=0.6, metavar="P", help="share of replies that are greedy, 0 to 1")
    add("--reply-temperature", type=float, default=0.8, metavar="T", help="of the other replies")
    add("--batch", type=int, metavar="N", help="conversations written at once (64 on a CPU, 1024 on a GPU)")
    add("--shard-rows", type=int, metavar="N", help="conversations of a file (four batches)")
    add("--avoid", type=Path, action="append", default=[], metavar="FILE.jsonl",
        help="drop what shares 13 tokens in a row with a prompt of this file; may be repeated")  # fmt: skip
    add("--seed", type=int, default=0, metavar="N", help="of all draws")
    add_target(parser)
    add_device(parser)


def _add_train_drafter(stages: Commands[Parser]) -> None:
    text = "train a drafter and write it in the published format; goes on where an interrupted call stopped"
    parser = add_command(stages, "drafter", _train_drafter, text)
    parser.epilog = (
        "On several GPUs of one host: accelerate launch --num_processes 2 -m dominotree_lite.cli train drafter ..."
        " (or torchrun --nproc-per-node 2 -m ..., on CPUs too). Each process takes --rows of its own a step."
    )
    add = parser.add_argument
    _add_corpus(parser)
    add("--out", type=Path, required=True, metavar="FOLDER", help="where the drafter, its card and run/ go")
    add("--kind", choices=("domino", "dflash"), default="domino", help="with the correction head, or without")
    add("--steps", type=int, default=11_500, metavar="N", help="optimiser steps")
    _add_batch(parser)
    add("--seed", type=int, default=0, metavar="N", help="of weights, order and anchors")
    add(
        "--start-from", metavar="NAME", help="a drafter to go on from (shipped, a folder or a hub id); its layout holds"
    )
    _add_loss(parser)
    _add_sizes(parser)
    add("--mask-token-id", type=int, metavar="ID", help="token of the slots to draft (one that is never text)")
    add("--evaluate-every", type=int, default=1000, metavar="N", help="steps between checkpoints")
    add(
        "--max-seconds",
        type=float,
        default=float("inf"),
        metavar="S",
        help="seconds after which to stop; call again to go on",
    )
    add_target(parser)
    add_device(parser)


def _add_train_ablate(stages: Commands[Parser]) -> None:
    text = "train variants of the recipe for equal seconds and measure them; goes on where an interrupted call stopped"
    parser = add_command(stages, "ablate", _train_ablate, text)
    add = parser.add_argument
    _add_corpus(parser)
    add("--out", type=Path, required=True, metavar="FOLDER", help="where results.jsonl, texts.json and the runs go")
    add("--prompts", type=Path, action="append", metavar="FILE.jsonl",
        help="prompts to measure on, as for compare; may be repeated (held-out rows alone without it)")  # fmt: skip
    add("--limit", type=int, metavar="N", help="prompts of each suite at most (all without it)")
    add("--skip", type=int, default=0, metavar="N", help="prompts of each suite to leave out first")
    add("--grid", type=Path, metavar="FILE.json", help="variants of your own, a list of objects (the built-in grid)")
    add("--variants", metavar="A,B", help="only these rows of the grid, in this order (all)")
    add("--seconds", type=float, default=90.0, metavar="S", help="of training a run, measurements not counted")
    add("--seeds", type=int, default=1, metavar="N", help="runs of each variant")
    add("--first-seed", type=int, default=0, metavar="N", help="the seed of the first of them")
    add("--held-out-texts", type=int, default=256, metavar="N", help="held-out rows to walk over")
    add("--max-new-tokens", type=int, default=128, metavar="N", help="of the answers to walk over")
    add("--budget", type=int, default=64, metavar="NODES", help="nodes of a tree, the root not counted")
    add("--candidates", type=int, default=512, metavar="M", help="tokens of each depth that a correction chooses among")
    _add_batch(parser)
    _add_sizes(parser)
    add_target(parser)
    add_device(parser)


def _add_corpus(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("corpus", type=Path, nargs="+", help="files that train corpus wrote, or folders of them")


def _add_batch(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--rows", type=int, default=48, metavar="N", help="conversations a step of each process (on a CPU give 2)")
    add("--anchors", type=int, default=32, metavar="N", help="blocks of each conversation a step (on a CPU give 4)")
    add("--learning-rate", type=float, default=1e-3, metavar="X", help="at its highest")


def _add_loss(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--base-start", type=float, default=1.0, metavar="P", help="weight of the base loss at the beginning, 0 to 1")
    add("--base-floor", type=float, default=0.1, metavar="P", help="weight of the base loss from --base-decay on")
    add("--base-decay", type=float, default=0.8, metavar="P", help="share of the steps in which that weight falls")
    add("--gamma", type=float, default=7.0, metavar="X", help="slot i weighs exp(-i / X); inf: all alike")
    add("--labels", choices=("text", "argmax", "soft"), default="text",
        help="the text's tokens, what the target likes best there, or its whole distribution")  # fmt: skip
    add("--prefix", choices=("text", "drafted"), default="text",
        help="what the head reads: the text (teacher forcing) or its own drafts (training-time test)")  # fmt: skip
    add("--depth-weights", choices=("decay", "reached"), default="decay",
        help="reached: a slot also weighs as much as the drafter trusts what is before it")  # fmt: skip


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--layers", type=int, default=5, metavar="N", help="of the backbone")
    add("--features", type=int, default=5, metavar="N", help="layers of the target that are read")
    add("--block", type=int, default=16, metavar="N", help="slots, the anchor's included")
    add("--intermediate", type=int, metavar="N", help="width of the MLP (4/3 of the target's hidden size)")
    add("--gru", type=int, metavar="N", help="width of the head's GRU (4/3 of it, at most 1024)")
    add("--rank", type=int, metavar="N", help="rank of the head's correction (1/6 of it, at most 256)")


def _train_corpus(arguments: argparse.Namespace) -> None:
    from ..files import check_writable
    from .author import CorpusConfig, write_corpus
    from .statistics import summary

    config = CorpusConfig(
        rows=arguments.rows,
        row_length=arguments.row_length,
        user_length=arguments.user_length,
        template_share=arguments.template_share,
        opening_share=arguments.opening_share,
        greedy_share=arguments.greedy_share,
        reply_temperature=arguments.reply_temperature,
        batch=arguments.batch,
        shard_rows=arguments.shard_rows,
        seed=arguments.seed,
    )
    check_writable(arguments.out / "corpus")
    for path in write_corpus(load_target_of(arguments), arguments.out, config, tuple(arguments.avoid)):
        print(path)
    print(summary(arguments.out))


def _train_drafter(arguments: argparse.Namespace) -> None:
    import torch

    from ..checkpoints import load_drafter
    from ..files import check_writable
    from .loop import TrainConfig
    from .processes import is_main, leave, own_device
    from .recipe import drafter_config
    from .run import train_drafter

    given = ("steps", "rows", "anchors", "learning_rate", "seed", "base_start", "base_floor", "base_decay")
    recipe = TrainConfig(
        **{name: getattr(arguments, name) for name in (*given, "gamma", "labels", "prefix", "depth_weights")}
    )
    check_writable(arguments.out / "config.json")
    arguments.device = own_device(arguments.device, torch.cuda.device_count())
    target = load_target_of(arguments)
    if arguments.start_from:
        config = load_drafter(arguments.start_from, target).config
    else:
        config = drafter_config(target, arguments.kind, _sizes(arguments), arguments.mask_token_id)
    limits = arguments.evaluate_every, arguments.max_seconds
    done = train_drafter(target, _corpus_files(arguments), arguments.out, config, recipe, *limits, arguments.start_from)
    if is_main():
        print(arguments.out if done else f"{arguments.out}: not finished; the same command goes on from there")
    leave()


def _train_ablate(arguments: argparse.Namespace) -> None:
    from ..files import check_writable
    from ..prompts import load_prompts
    from .ablation import Ablation, AblationConfig
    from .grid import GRID, choose, load_grid
    from .loop import TrainConfig
    from .walk import TreeSize

    recipe = TrainConfig(rows=arguments.rows, anchors=arguments.anchors, learning_rate=arguments.learning_rate)
    config = AblationConfig(
        seconds=arguments.seconds,
        seeds=arguments.seeds,
        first_seed=arguments.first_seed,
        recipe=recipe,
        sizes=_sizes(arguments),
        held_out_texts=arguments.held_out_texts,
        new_tokens=arguments.max_new_tokens,
        tree=TreeSize(arguments.budget, arguments.candidates),
    )
    grid = load_grid(arguments.grid) if arguments.grid else GRID
    variants = choose(grid, arguments.variants.split(",") if arguments.variants else None)
    files = arguments.prompts or []
    prompts = load_prompts(*files, limit_per_suite=arguments.limit, skip=arguments.skip) if files else []
    check_writable(arguments.out / "results.jsonl")
    print(Ablation(load_target_of(arguments), _corpus_files(arguments), prompts, arguments.out, config).run(variants))


def _sizes(arguments: argparse.Namespace) -> DrafterSizes:
    from .recipe import DrafterSizes

    given = ("layers", "features", "block", "intermediate", "gru", "rank")
    return DrafterSizes(*(getattr(arguments, name) for name in given))


def _corpus_files(arguments: argparse.Namespace) -> list[Path]:
    return [file for path in arguments.corpus for file in (sorted(path.glob("*.npz")) if path.is_dir() else [path])]
