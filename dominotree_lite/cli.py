"""The command `dominotree`: parse, call, print. It computes nothing, and imports what is heavy only when needed.

Exit codes: 0 done; 1 the reader of the output has gone; 2 bad arguments or input, with one line on standard
error; 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from .errors import InputError

if TYPE_CHECKING:
    from .decode import Settings
    from .drafter import Drafter
    from .target import Target
    from .train.recipe import DrafterSizes

# Names that need no torch, so that --help is quick; a test holds them to the modules they come from.
METHODS = ("ar", "dflash", "ddtree", "domino", "marginal", "greedypath", "dominotree")
DTYPES = ("float32", "bfloat16", "float16")
ALIASES = {"smollm2": ("smollm2-dflash", "smollm2-domino")}  # a target that is shipped, and its drafters
DEFAULT_TARGET = "smollm2"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (without the program's name) and return its exit code."""
    try:
        arguments = build_parser().parse_args(argv)
        arguments.run(arguments)
        sys.stdout.flush()
        return 0
    except InputError as error:
        print("dominotree:", str(error).replace("\n", " "), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("dominotree: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the exit's own flush complains
        return 1


# --- Arguments -----------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """argparse that reports a mistake as one line, and as an exception."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Every default is shown, except where the help already says what happens without the option."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None or action.default is False else super()._get_help_string(action)


def build_parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    parser = _Parser(prog="dominotree", description="Draft trees for lossless speculative decoding.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_demo(commands)
    _add_compare(commands)
    _add_fetch(commands)
    _add_train(commands)
    return parser


_Commands = argparse._SubParsersAction


def _add(commands: _Commands[_Parser], name: str, run: Callable[[argparse.Namespace], None], text: str) -> _Parser:
    parser = commands.add_parser(name, help=text, description=text, formatter_class=_Help)
    parser.set_defaults(run=run)
    return parser


def _add_demo(commands: _Commands[_Parser]) -> None:
    parser = _add(commands, "demo", _demo, "every method on a few prompts of the embedded model, with a picture")
    parser.add_argument("--out", type=Path, default=Path("out/demo"), metavar="FOLDER", help="where files go")
    _add_decoding(parser, budget=16, max_new_tokens=48)
    _add_device(parser)
    parser.set_defaults(target=DEFAULT_TARGET, drafter=None)


def _add_compare(commands: _Commands[_Parser]) -> None:
    parser = _add(commands, "compare", _compare, "methods side by side on prompts of yours: tau, speed, identity")
    add = parser.add_argument
    add("--prompts", type=Path, action="append", required=True, metavar="FILE.jsonl",
        help="an object a line with id, suite and turns (a list of texts); may be given several times")  # fmt: skip
    add("--methods", type=_methods, metavar="A,B", help=f"of {', '.join(METHODS)} (all that the drafters serve)")
    _add_decoding(parser, budget=64, max_new_tokens=128)
    add("--limit", type=int, metavar="N", help="prompts of each suite at most (all without it)")
    add("--skip", type=int, default=0, metavar="N", help="prompts of each suite to leave out first")
    _add_target(parser)
    add("--drafter", action="append", metavar="NAME",
        help="a shipped one, a folder or a hub id; once for each kind (smollm2 brings both of its own)")  # fmt: skip
    _add_device(parser)
    add("--json", type=Path, metavar="OUT", help="write settings, rows and divergences here")
    add("--records", action="store_true", help="add each prompt's own numbers to the JSON, as per_prompt")


def _add_fetch(commands: _Commands[_Parser]) -> None:
    text = "put an embedded model into the user's cache (DOMINOTREE_CACHE moves it) and check every file of it"
    parser = _add(commands, "fetch", _fetch, text)
    parser.add_argument("name", nargs="?", default=DEFAULT_TARGET, help="which one")


def _add_decoding(parser: argparse.ArgumentParser, budget: int, max_new_tokens: int) -> None:
    add = parser.add_argument
    add("--budget", type=int, default=budget, metavar="NODES", help="nodes of a draft tree, the root not counted")
    add("--candidates", type=_candidates, default=512, metavar="M",
        help="tokens of each depth that a tree's correction chooses among, or full: the whole vocabulary")  # fmt: skip
    add("--child-cap", type=int, metavar="K", help="children of a node at most (the smaller of M and the budget)")
    add("--slots", type=int, metavar="N", help="tokens drafted a round at most (every slot that predicts)")
    add("--temperature", type=float, default=0.0, metavar="T", help="of the target; 0 is greedy")
    add("--top-k", type=int, default=0, metavar="K", help="likeliest tokens the target draws from; 0: all")
    add("--top-p", type=float, default=1.0, metavar="P", help="probability the target draws from; 1: all")
    add("--max-new-tokens", type=int, default=max_new_tokens, metavar="N", help="new tokens a turn at most")
    add("--seed", type=int, default=0, metavar="N", help="of the draws at temperatures above 0")


def _add_train(commands: _Commands[_Parser]) -> None:
    text = "write training text with a target, or train a drafter on such text"
    stages = commands.add_parser("train", help=text, description=text).add_subparsers(required=True, metavar="STAGE")
    _add_train_corpus(stages)
    _add_train_drafter(stages)
    _add_train_ablate(stages)


def _add_train_corpus(stages: _Commands[_Parser]) -> None:
    text = "the target writes questions and answers them; goes on where an interrupted call stopped"
    parser = _add(stages, "corpus", _train_corpus, text)
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
    _add_target(parser)
    _add_device(parser)


def _add_train_drafter(stages: _Commands[_Parser]) -> None:
    text = "train a drafter and write it in the published format; goes on where an interrupted call stopped"
    parser = _add(stages, "drafter", _train_drafter, text)
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
    _add_target(parser)
    _add_device(parser)


def _add_train_ablate(stages: _Commands[_Parser]) -> None:
    text = "train variants of the recipe for equal seconds and measure them; goes on where an interrupted call stopped"
    parser = _add(stages, "ablate", _train_ablate, text)
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
    add("--held-out-texts", type=int, default=256, metavar="N", help="held-out rows to walk over")
    add("--max-new-tokens", type=int, default=128, metavar="N", help="of the answers to walk over")
    add("--budget", type=int, default=64, metavar="NODES", help="nodes of a tree, the root not counted")
    add("--candidates", type=int, default=512, metavar="M", help="tokens of each depth that a correction chooses among")
    _add_batch(parser)
    _add_sizes(parser)
    _add_target(parser)
    _add_device(parser)


def _add_corpus(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("corpus", type=Path, nargs="+", help="files that train corpus wrote, or folders of them")


def _add_batch(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--rows", type=int, default=48, metavar="N", help="conversations a step of each process (on a CPU give 2)")
    add("--anchors", type=int, default=32, metavar="N", help="blocks of each conversation a step (on a CPU give 4)")
    add("--learning-rate", type=float, default=1e-3, metavar="X", help="at its highest")


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--layers", type=int, default=5, metavar="N", help="of the backbone")
    add("--features", type=int, default=5, metavar="N", help="layers of the target that are read")
    add("--block", type=int, default=16, metavar="N", help="slots, the anchor's included")
    add("--intermediate", type=int, metavar="N", help="width of the MLP (4/3 of the target's hidden size)")
    add("--gru", type=int, metavar="N", help="width of the head's GRU (4/3 of it, at most 1024)")
    add("--rank", type=int, metavar="N", help="rank of the head's correction (1/6 of it, at most 256)")


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default=DEFAULT_TARGET, metavar="NAME", help="smollm2, a folder or a hub id")


def _add_device(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--device", metavar="D", help="cpu, cuda or cuda:N (cuda where there is one)")
    add("--dtype", choices=DTYPES, help="of all models (float32 on a CPU, bfloat16 on a GPU)")
    add("--linear", choices=("packed", "plain"), default="packed",
        help="float32 linear layers on a CPU: weights laid out for oneDNN, or PyTorch's own product")  # fmt: skip
    add("--threads", type=int, metavar="N", help="CPU threads (what torch chooses)")


def _methods(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if strange := [name for name in names if name not in METHODS]:
        raise argparse.ArgumentTypeError(f"no method {strange[0]!r}; there are {', '.join(METHODS)}")
    return names


def _candidates(text: str) -> int | None:
    try:
        return None if text == "full" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor full") from None


# --- Commands -------------------------------------------------------------------------------------------------


def _demo(arguments: argparse.Namespace) -> None:
    from .demo import run_demo
    from .files import check_writable
    from .prompts import DEMO, load_prompts

    settings = _settings(arguments)
    prompts = load_prompts(DEMO)
    check_writable(arguments.out / "trees.png")
    target = _target(arguments)
    run_demo(prompts, target, _drafters(arguments, target), settings, arguments.out)


def _compare(arguments: argparse.Namespace) -> None:
    from .evaluate import compare, usable_methods
    from .files import check_writable, write_json
    from .prompts import load_prompts
    from .terminal import print_comparison, progress_over

    settings = _settings(arguments)
    prompts = load_prompts(*arguments.prompts, limit_per_suite=arguments.limit, skip=arguments.skip)
    if arguments.json:
        check_writable(arguments.json)
    target = _target(arguments)
    drafters = _drafters(arguments, target)
    methods = arguments.methods or usable_methods(drafters)
    with progress_over(len(prompts)) as progress:
        comparison = compare(prompts, target, drafters, methods, settings, progress)
    comparison.settings.update(
        prompts=[path.name for path in arguments.prompts], limit=arguments.limit, skip=arguments.skip
    )
    if arguments.json:  # before anything is printed: a reader that has gone must not cost the results
        extra = {"per_prompt": comparison.records_json()} if arguments.records else {}
        write_json(arguments.json, comparison.to_json() | extra)
    print_comparison(comparison)


def _fetch(arguments: argparse.Namespace) -> None:
    from .embedded import fetch, verify

    folder = fetch(arguments.name)
    verify(folder)
    print(folder)


def _train_corpus(arguments: argparse.Namespace) -> None:
    from .files import check_writable
    from .train.author import CorpusConfig, write_corpus
    from .train.statistics import summary

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
    for path in write_corpus(_target(arguments), arguments.out, config, tuple(arguments.avoid)):
        print(path)
    print(summary(arguments.out))


def _train_drafter(arguments: argparse.Namespace) -> None:
    import torch

    from .files import check_writable
    from .train.loop import TrainConfig
    from .train.processes import is_main, leave, own_device
    from .train.recipe import drafter_config
    from .train.run import train_drafter

    recipe = TrainConfig(
        steps=arguments.steps,
        rows=arguments.rows,
        anchors=arguments.anchors,
        learning_rate=arguments.learning_rate,
        seed=arguments.seed,
    )
    check_writable(arguments.out / "config.json")
    arguments.device = own_device(arguments.device, torch.cuda.device_count())
    target = _target(arguments)
    config = drafter_config(target, arguments.kind, _sizes(arguments), arguments.mask_token_id)
    limits = arguments.evaluate_every, arguments.max_seconds
    done = train_drafter(target, _corpus_files(arguments), arguments.out, config, recipe, *limits)
    if is_main():
        print(arguments.out if done else f"{arguments.out}: not finished; the same command goes on from there")
    leave()


def _train_ablate(arguments: argparse.Namespace) -> None:
    from .files import check_writable
    from .prompts import load_prompts
    from .train.ablation import Ablation, AblationConfig
    from .train.grid import GRID, choose, load_grid
    from .train.loop import TrainConfig
    from .train.walk import TreeSize

    recipe = TrainConfig(rows=arguments.rows, anchors=arguments.anchors, learning_rate=arguments.learning_rate)
    config = AblationConfig(
        seconds=arguments.seconds,
        seeds=arguments.seeds,
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
    print(Ablation(_target(arguments), _corpus_files(arguments), prompts, arguments.out, config).run(variants))


# --- From arguments to objects -------------------------------------------------------------------------------


def _settings(arguments: argparse.Namespace) -> Settings:
    from .decode import Settings
    from .verify import Sampling

    return Settings(
        budget=arguments.budget,
        candidates=arguments.candidates,
        child_cap=arguments.child_cap,
        slots=arguments.slots,
        sampling=Sampling(arguments.temperature, arguments.top_k, arguments.top_p),
        max_new_tokens=arguments.max_new_tokens,
        seed=arguments.seed,
    )


def _sizes(arguments: argparse.Namespace) -> DrafterSizes:
    from .train.recipe import DrafterSizes

    given = ("layers", "features", "block", "intermediate", "gru", "rank")
    return DrafterSizes(*(getattr(arguments, name) for name in given))


def _corpus_files(arguments: argparse.Namespace) -> list[Path]:
    return [file for path in arguments.corpus for file in (sorted(path.glob("*.npz")) if path.is_dir() else [path])]


def _target(arguments: argparse.Namespace) -> Target:
    """The target on its device. What libraries say of themselves on the way is not the command's output."""
    import torch
    import transformers

    from .checkpoints import load_target

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if arguments.threads is not None:
        if arguments.threads < 1:
            raise InputError(f"threads {arguments.threads} is too small: give 1 or more")
        torch.set_num_threads(arguments.threads)
    _check_device(arguments.device, torch.cuda.device_count())
    dtype = getattr(torch, arguments.dtype) if arguments.dtype else None
    return load_target(arguments.target, arguments.device, dtype, arguments.linear)


def _check_device(name: str | None, gpus: int) -> None:
    if name is None or name == "cpu":
        return
    form = re.fullmatch(r"cuda(?::(\d+))?", name)
    if form is None:
        raise InputError(f"device {name}: give cpu, cuda or cuda:N")
    if int(form[1] or 0) >= gpus:
        raise InputError(f"device {name}: torch sees {gpus} CUDA devices here; give cpu, or another number")


def _drafters(arguments: argparse.Namespace, target: Target) -> dict[str, Drafter]:
    """The drafters by kind: those named, else those that come with the target's alias."""
    from .checkpoints import load_drafter

    drafters: dict[str, Drafter] = {}
    for name in arguments.drafter or ALIASES.get(arguments.target, ()):
        drafter = load_drafter(name, target)
        if drafter.kind in drafters:
            raise InputError(f"drafters {drafters[drafter.kind].name} and {name} are both {drafter.kind}: give one")
        drafters[drafter.kind] = drafter
    return drafters


if __name__ == "__main__":
    sys.exit(main())
