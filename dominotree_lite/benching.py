"""The command `dominotree bench`: parse, call, print. It computes nothing and imports heavy things only when needed."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from .arguments import Commands, Parser, add_command, add_device, add_target, load_target_of
from .errors import InputError

if TYPE_CHECKING:
    from .drafter import Drafter
    from .prompts import PromptRow
    from .target import Target

Value = TypeVar("Value")
DrafterOf = Callable[[argparse.Namespace, "Target"], "dict[str, Drafter]"]
PEERS = ("hf-generate", "hf-prompt-lookup", "hf-early-exit")  # a test holds them to peers.py


def add_bench(commands: Commands[Parser], drafters_of: DrafterOf) -> None:
    """Add the command; `drafters_of` loads the drafters that arguments name, by kind."""
    text = "measure methods on suites at temperatures, budgets and candidates, as records; goes on where it stopped"
    parser = add_command(commands, "bench", lambda arguments: _bench(arguments, drafters_of), text)
    add = parser.add_argument
    _add_sources(parser)
    add("--methods", type=_names, metavar="A,B",
        help=f"those of compare, and {', '.join(PEERS)} (all with fixed budgets that the drafters serve)")  # fmt: skip
    add("--temperatures", type=_list_of(float), default="0", metavar="T,T", help="of the target; 0 is greedy")
    add("--budgets", type=_list_of(int), default="64", metavar="N,N",
        help="nodes of a draft tree, the root not counted; of adaptive methods at most")  # fmt: skip
    add("--candidates", type=_list_of(_candidates), default="512", metavar="M,M",
        help="tokens of each depth that a tree's correction chooses among, or full: the whole vocabulary")  # fmt: skip
    add("--child-cap", type=int, metavar="K", help="children of a node at most (the smaller of M and the budget)")
    add("--max-new-tokens", type=int, default=128, metavar="N", help="new tokens a turn at most")
    add("--seed", type=int, default=0, metavar="N", help="of the draws at temperatures above 0")
    add("--part", type=_part, default="1/1", metavar="I/N",
        help="only the I-th of N shares of the prompts, for several processes with a file each")  # fmt: skip
    add_target(parser)
    add("--drafter", action="append", metavar="NAME",
        help="a shipped one, a folder or a hub id; once for each kind (smollm2 brings both of its own)")  # fmt: skip
    add_device(parser)
    add("--out", type=Path, required=True, metavar="FILE.jsonl", help="where records go; what stands there is kept")


def _add_sources(parser: Parser) -> None:
    add = parser.add_argument
    sources = parser.add_mutually_exclusive_group()
    sources.add_argument("--suites", type=_names, metavar="A,B", help="shipped suites (all, if no source is named)")
    sources.add_argument("--prompts", type=Path, action="append", metavar="FILE.jsonl",
        help="an object a line with id, suite and turns (a list of texts); may be given several times")  # fmt: skip
    sources.add_argument("--hub", type=_names, metavar="A,B", help="benchmarks of the hub, through datasets")
    add("--hub-folder", type=Path, metavar="FOLDER", help="copies of the hub's data sets, a folder for each benchmark")
    add("--limit", type=int, metavar="N", help="prompts of each suite at most (all without it)")
    add("--skip", type=int, default=0, metavar="N", help="prompts of each suite to leave out first")


def _bench(arguments: argparse.Namespace, drafters_of: DrafterOf) -> None:
    from .bench import Bench
    from .cells import Grid
    from .evaluate import usable_methods
    from .files import check_writable
    from .records import load_records
    from .terminal import progress_over_cells

    prompts = _prompts(arguments)
    check_writable(arguments.out)
    target = load_target_of(arguments)
    drafters = drafters_of(arguments, target)
    methods = arguments.methods or usable_methods(drafters)
    grid = Grid(methods, arguments.temperatures, arguments.budgets, arguments.candidates, arguments.child_cap)
    bench = Bench(target, drafters, grid, arguments.max_new_tokens, arguments.seed)
    there = load_records(arguments.out).records if arguments.out.exists() else []
    left = sum(len(job.cells) for job in bench.jobs(prompts, there))
    with progress_over_cells(left) as progress:
        bench.run(prompts, arguments.out, progress)
    print(f"{arguments.out}: {len(prompts) * len(bench.settings)} records, {left} of them new")


def _prompts(arguments: argparse.Namespace) -> list[PromptRow]:
    """This part's prompts of the source that is named."""
    from .prompts import load_prompts, select, suite_files

    if arguments.hub_folder and not arguments.hub:
        raise InputError("--hub-folder: name the benchmarks with --hub, too")
    if arguments.hub:
        from .hub import load_benchmarks

        rows = select(load_benchmarks(arguments.hub, arguments.hub_folder), arguments.limit, arguments.skip)
    else:
        files = arguments.prompts or suite_files(arguments.suites)
        rows = load_prompts(*files, limit_per_suite=arguments.limit, skip=arguments.skip)
    first, parts = arguments.part
    if not (share := rows[first - 1 :: parts]):
        raise InputError(f"part {first}/{parts}: there are {len(rows)} prompts only; take fewer parts")
    return share


# --- Values ----------------------------------------------------------------------------------------------------


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _list_of(kind: Callable[[str], Value]) -> Callable[[str], list[Value]]:
    def read(text: str) -> list[Value]:
        try:
            return [kind(part) for part in text.split(",")]
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of values with commas between") from None

    return read


def _candidates(text: str) -> int | Literal["full"]:
    return "full" if text == "full" else int(text)


def _part(text: str) -> list[int]:
    first, _, parts = text.partition("/")
    if not (first.isdecimal() and parts.isdecimal() and 1 <= int(first) <= int(parts)):
        raise argparse.ArgumentTypeError(f"{text!r} is no part: give I/N, like 1/8")
    return [int(first), int(parts)]
