"""The commands that adaptive budgets need first: `profile` measures this machine, `calibrate` fits the scores.

Parse, call, print, as cli.py; what is heavy is imported only when needed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .arguments import Commands, Parser, add_command, add_device, add_target, load_target_of
from .errors import InputError

if TYPE_CHECKING:
    from .drafter import Drafter
    from .target import Target

DrafterOf = Callable[[argparse.Namespace, "Target"], "dict[str, Drafter]"]
CALIBRATION = Path(__file__).resolve().parent.parent / "data" / "prompts" / "calibration.jsonl"
DRAFTER = "a shipped one, a folder or a hub id; once for each kind (smollm2 brings both of its own)"


def add_tuning(commands: Commands[Parser], drafters_of: DrafterOf, candidates: Callable[[str], int | None]) -> None:
    """Add both commands; `drafters_of` loads the drafters that arguments name, by kind."""
    text = "measure what a round costs on this machine, for the methods that choose their budget"
    parser = add_command(commands, "profile", lambda arguments: _profile(arguments, drafters_of), text)
    add = parser.add_argument
    _add_models(parser)
    add("--contexts", type=_lengths, default="64,256,1024", metavar="A,B", help="committed tokens to measure at")
    add("--max-budget", type=int, default=256, metavar="NODES", help="nodes of the largest tree")
    add("--candidates", type=candidates, default=512, metavar="M", help="tokens of each depth to choose among, or full")
    add("--repeats", type=int, default=9, metavar="N", help="measurements of each part; the median counts")
    text = "fit how likely paths are accepted to what a Domino drafter promises, for caladaptive"
    parser = add_command(commands, "calibrate", lambda arguments: _calibrate(arguments, drafters_of), text)
    add = parser.add_argument
    _add_models(parser)
    add("--prompts", type=Path, action="append", metavar="FILE.jsonl",
        help="what to decode: never what you measure on (data/prompts/calibration.jsonl)")  # fmt: skip
    add("--limit", type=int, metavar="N", help="prompts of each suite at most (all without it)")
    add("--budget", type=int, default=128, metavar="NODES", help="nodes of the trees that are judged")
    add("--candidates", type=candidates, default=512, metavar="M", help="tokens of each depth to choose among, or full")
    add("--temperature", type=float, default=0.0, metavar="T", help="of the target; 0 is greedy")
    add("--max-new-tokens", type=int, default=64, metavar="N", help="new tokens a turn at most")
    add("--seed", type=int, default=0, metavar="N", help="of the draws at temperatures above 0")


def _add_models(parser: Parser) -> None:
    add_target(parser)
    parser.add_argument("--drafter", action="append", metavar="NAME", help=DRAFTER)
    add_device(parser)


def _lengths(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers with commas between") from None


def _profile(arguments: argparse.Namespace, drafters_of: DrafterOf) -> None:
    from .costs import save_costs
    from .profiling import ProfileSettings, profile

    settings = ProfileSettings(arguments.contexts, arguments.max_budget, arguments.candidates, arguments.repeats)
    target = load_target_of(arguments)
    drafters = drafters_of(arguments, target)
    if not drafters:
        raise InputError("a profile is of a target and a drafter: name one with --drafter")
    for drafter in drafters.values():
        found = profile(target, drafter, settings)
        path = save_costs(found.costs, found.measured, target, drafter)
        print(f"{drafter.name}, milliseconds at {found.costs.contexts[0]} committed tokens:")
        fitted = found.costs.verify(settings.max_budget, found.costs.contexts[0])
        shown = ", ".join(f"{n}: {1000 * fitted[n]:.1f}" for n in found.costs.nodes)
        print(f"  draft {1000 * found.costs.draft_seconds[0]:.1f}; verify by nodes {shown}")
        build = found.costs
        print(f"  build {1000 * build.build_start:.2f} + {1000 * build.build_depth:.3f} a depth "
              f"+ {1000 * build.build_lane:.4f} a lane")  # fmt: skip
        print(path)


def _calibrate(arguments: argparse.Namespace, drafters_of: DrafterOf) -> None:
    from .calibrating import calibrate
    from .credit import Fit, save_credit
    from .methods import Settings
    from .prompts import load_prompts
    from .terminal import progress_over
    from .verify import Sampling

    settings = Settings(
        "dominotree",
        budget=arguments.budget,
        candidates=arguments.candidates,
        sampling=Sampling(arguments.temperature),
        max_new_tokens=arguments.max_new_tokens,
        seed=arguments.seed,
    )
    prompts = load_prompts(*(arguments.prompts or [CALIBRATION]), limit_per_suite=arguments.limit)
    target = load_target_of(arguments)
    drafter = drafters_of(arguments, target).get("domino")
    if drafter is None:
        raise InputError("a calibration is of a Domino drafter: name one with --drafter")
    with progress_over(len(prompts)) as progress:
        found = calibrate(prompts, target, drafter, settings, progress)
    path = save_credit(drafter, Fit(found.credit, arguments.temperature, arguments.candidates, found.rounds))
    print(f"{found.rounds} rounds of {len(prompts)} prompts, accepted length {found.accepted:.2f}")
    print(f"promised {found.promised:.2f}; by the map, on prompts it was not fitted on, {found.fitted:.2f}")
    before, after = (f"{e.value:.3f} [{e.low:.3f}, {e.high:.3f}]" for e in (found.error_before, found.error_after))
    print(f"calibration error {before}; by the map, likewise, {after}")
    print(path)
