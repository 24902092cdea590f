"""The command `dominotree`: parse, call, print. It computes nothing, and imports what is heavy only when needed.

Exit codes: 0 done; 1 the reader of the output has gone; 2 bad arguments or input, with one line on standard
error; 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .arguments import DEFAULT_TARGET, Commands, Parser, add_command, add_device, add_engine, add_target, load_target_of
from .benching import add_bench
from .errors import InputError
from .reporting import add_report
from .train.commands import add_train
from .tuning import add_tuning

if TYPE_CHECKING:
    from .decode import Settings
    from .drafter import Drafter
    from .target import Target

# Names that need no torch, so that --help is quick; a test holds them to the modules they come from.
FIXED = ("ar", "dflash", "ddtree", "domino", "marginal", "greedypath", "dominotree")
ADAPTIVE = ("caddtree", "condadaptive", "caladaptive")
METHODS = FIXED + ADAPTIVE
ALIASES = {"smollm2": ("smollm2-dflash", "smollm2-domino")}  # a target that is shipped, and its drafters


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


def build_parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    parser = Parser(prog="dominotree", description="Draft trees for lossless speculative decoding.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_demo(commands)
    _add_compare(commands)
    add_bench(commands, _drafters)
    _add_trace(commands)
    _add_view(commands)
    _add_fetch(commands)
    add_report(commands)
    add_tuning(commands, _drafters, _candidates)
    add_train(commands)
    return parser


def _add_demo(commands: Commands[Parser]) -> None:
    parser = add_command(commands, "demo", _demo, "every method on a few prompts of the embedded model, with a picture")
    parser.add_argument("--out", type=Path, default=Path("out/demo"), metavar="FOLDER", help="where files go")
    _add_decoding(parser, budget=16, max_new_tokens=48)
    add_device(parser)
    parser.set_defaults(target=DEFAULT_TARGET, drafter=None, max_budget=256, engine="eager")


def _add_compare(commands: Commands[Parser]) -> None:
    parser = add_command(commands, "compare", _compare, "methods side by side on your prompts: tau, speed, identity")
    add = parser.add_argument
    _add_prompts(parser)
    add(
        "--methods",
        type=_methods,
        metavar="A,B",
        help=f"of {', '.join(METHODS)} ({', '.join(FIXED)}, as far as the drafters serve)",
    )
    _add_decoding(parser, budget=64, max_new_tokens=128)
    add("--max-budget", type=int, default=256, metavar="NODES", help="nodes at most of an adaptive method's tree")
    add_target(parser)
    add("--drafter", action="append", metavar="NAME",
        help="a shipped one, a folder or a hub id; once for each kind (smollm2 brings both of its own)")  # fmt: skip
    add_device(parser)
    add_engine(parser)
    add("--json", type=Path, metavar="OUT", help="write settings, rows and divergences here")
    add("--records", action="store_true", help="add each prompt's own numbers to the JSON, as per_prompt")


def _add_trace(commands: Commands[Parser]) -> None:
    text = "record the rounds of a few answers with the trees of every score, to be looked at without a model"
    parser = add_command(commands, "trace", _trace, text)
    add = parser.add_argument
    _add_prompts(parser)
    _add_growing(parser, budget=64, max_new_tokens=48)
    add("--rounds", type=int, metavar="N", help="rounds of each answer at most (all without it)")
    add_target(parser)
    add("--drafter", action="append", metavar="NAME",
        help="a Domino drafter: a shipped one, a folder or a hub id (smollm2 brings its own)")  # fmt: skip
    add_device(parser)
    add("--out", type=Path, required=True, metavar="FILE.json", help="where the trace goes")
    parser.set_defaults(slots=None, top_k=0, top_p=1.0, max_budget=256, engine="eager")  # not stored


def _add_view(commands: Commands[Parser]) -> None:
    text = "make one page of a trace: the tree theatre, which opens in a browser without a network"
    parser = add_command(commands, "view", _view, text)
    parser.add_argument("trace", type=Path, metavar="FILE.json", help="what `dominotree trace` wrote")
    parser.add_argument("--out", type=Path, metavar="FILE.html", help="where the page goes (beside the trace)")


def _add_fetch(commands: Commands[Parser]) -> None:
    text = "put an embedded model into the user's cache (DOMINOTREE_CACHE moves it) and check every file of it"
    parser = add_command(commands, "fetch", _fetch, text)
    parser.add_argument("name", nargs="?", default=DEFAULT_TARGET, help="which one")


def _add_prompts(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--prompts", type=Path, action="append", required=True, metavar="FILE.jsonl",
        help="an object a line with id, suite and turns (a list of texts); may be given several times")  # fmt: skip
    add("--limit", type=int, metavar="N", help="prompts of each suite at most (all without it)")
    add("--skip", type=int, default=0, metavar="N", help="prompts of each suite to leave out first")


def _add_growing(parser: argparse.ArgumentParser, budget: int, max_new_tokens: int) -> None:
    add = parser.add_argument
    add("--budget", type=int, default=budget, metavar="NODES", help="nodes of a draft tree, the root not counted")
    add("--candidates", type=_candidates, default=512, metavar="M",
        help="tokens of each depth that a tree's correction chooses among, or full: the whole vocabulary")  # fmt: skip
    add("--child-cap", type=int, metavar="K", help="children of a node at most (the smaller of M and the budget)")
    add("--temperature", type=float, default=0.0, metavar="T", help="of the target; 0 is greedy")
    add("--max-new-tokens", type=int, default=max_new_tokens, metavar="N", help="new tokens a turn at most")
    add("--seed", type=int, default=0, metavar="N", help="of the draws at temperatures above 0")


def _add_decoding(parser: argparse.ArgumentParser, budget: int, max_new_tokens: int) -> None:
    _add_growing(parser, budget, max_new_tokens)
    add = parser.add_argument
    add("--slots", type=int, metavar="N", help="tokens drafted a round at most (every slot that predicts)")
    add("--top-k", type=int, default=0, metavar="K", help="likeliest tokens the target draws from; 0: all")
    add("--top-p", type=float, default=1.0, metavar="P", help="probability the target draws from; 1: all")


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
    target = load_target_of(arguments)
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
    target = load_target_of(arguments)
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


def _trace(arguments: argparse.Namespace) -> None:
    from .files import check_writable
    from .prompts import load_prompts
    from .terminal import progress_over
    from .tracer import record

    settings = _settings(arguments)
    prompts = load_prompts(*arguments.prompts, limit_per_suite=arguments.limit, skip=arguments.skip)
    check_writable(arguments.out)
    target = load_target_of(arguments)
    drafter = _drafters(arguments, target).get("domino")
    if drafter is None:
        raise InputError("a trace compares the scores of a Domino drafter: name one with --drafter")
    with progress_over(len(prompts)) as progress:
        trace = record(prompts, target, drafter, settings, arguments.rounds, progress)
    trace.save(arguments.out)
    rounds = sum(len(prompt.rounds) for prompt in trace.prompts)
    print(f"{arguments.out}: {len(trace.prompts)} prompts, {rounds} rounds, {trace.size:,} nodes")


def _view(arguments: argparse.Namespace) -> None:
    out = arguments.out or arguments.trace.with_suffix(".html")
    if out == arguments.trace:
        raise InputError(f"{out}: the page would take the trace's place; choose another with --out")
    try:
        from .viz.theatre import TreeTheatre
    except ModuleNotFoundError as error:
        raise InputError(f"the theatre needs {error.name}: pip install 'dominotree_lite[viz]'") from error
    TreeTheatre.from_trace(arguments.trace).export_html(out)
    print(out)


def _fetch(arguments: argparse.Namespace) -> None:
    from .embedded import fetch, verify

    folder = fetch(arguments.name)
    verify(folder)
    print(folder)


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
        max_budget=arguments.max_budget,
        engine=arguments.engine,
    )


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
