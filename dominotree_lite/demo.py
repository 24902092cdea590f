"""The main job, once, on the embedded model: a table, a text round by round, and two trees side by side.

It joins evaluate, snapshot, terminal and viz, and knows none of their insides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

from .decode import Result, decode
from .drafter import Drafter
from .equip import check_drafter
from .errors import InputError
from .evaluate import Comparison, Drafters, compare, usable_methods
from .files import write_json
from .methods import Settings
from .prompts import ALL, PromptRow
from .snapshot import Snapshot, snapshot
from .target import Target
from .terminal import console, print_comparison, progress_over, round_line
from .verify import Sampling

SHOWN_METHOD, TREES = "dominotree", ("marginal", "dominotree")
TITLES = ("marginal: each depth on its own", "dominotree: each node after its own path")
PICTURE_BUDGET = 16  # nodes a person can still read
TABLE_NAME, PICTURE_NAMES = "comparison.json", ("trees.png", "trees.svg")


@dataclass(frozen=True)
class Demo:
    """What was found and where the pictures lie."""

    comparison: Comparison
    shown: Result
    moment: Snapshot
    pictures: list[Path]


def run_demo(prompts: Sequence[PromptRow], target: Target, drafters: Drafters, settings: Settings, out: Path) -> Demo:
    """Run every method on the prompts, print, and write a JSON file and two pictures to the folder `out`.

    The first prompt's first turn is the one shown round by round. `settings.method` is not read. Raises
    InputError where there is no Domino drafter, the pictures' libraries are missing, or `out` can't be written.
    """
    _check_pictures()
    check_drafter(SHOWN_METHOD, drafters.get("domino"))
    with progress_over(len(prompts)) as progress:
        comparison = compare(prompts, target, drafters, usable_methods(drafters), settings, progress)
    write_json(out / TABLE_NAME, comparison.to_json())
    print_comparison(comparison, [ALL])
    turn = prompts[0].turns[0]
    greedy = replace(settings, method=SHOWN_METHOD, sampling=Sampling())  # a round can be looked into again then
    shown = decode(turn, target, drafters["domino"], greedy)
    print_rounds(turn, shown, target)
    moment = telling_round(shown, target, drafters["domino"], replace(greedy, budget=PICTURE_BUDGET))
    pictures = draw(moment, target, out)
    print_choice(shown, moment)
    console().print("wrote", *(out / TABLE_NAME, *pictures), highlight=False, soft_wrap=True)
    return Demo(comparison, shown, moment, pictures)


def _check_pictures() -> None:
    """Before the minutes of decoding, not after them."""
    try:
        import_module(".viz.trees", __package__)
    except ModuleNotFoundError as error:
        raise InputError(f"the picture needs {error.name}: pip install 'dominotree_lite[viz]'") from error


def print_rounds(turn: str, result: Result, target: Target) -> None:
    """The text of a result, a line a round."""
    screen = console()
    first = target.decode(result.token_ids[:1])
    for line in (
        f"\n{SHOWN_METHOD} answers: {turn}",
        "[a draft token that the target accepted] {the target's own token}; how many were accepted stands before",
        f"  prefill  {{{first}}}",
    ):
        screen.print(line, highlight=False, markup=False, soft_wrap=True)
    for number, one in enumerate(result.rounds, start=1):
        screen.print(round_line(number, one, lambda token: target.decode([token])), soft_wrap=True)
    screen.print(f"tau {result.tau:.2f}, the mean number of tokens a round", highlight=False)


def telling_round(result: Result, target: Target, drafter: Drafter, settings: Settings) -> Snapshot:
    """The first round in which the two trees' accepted paths differ in length; if none does, the longest path's.

    Raises InputError if the result has no round at all.
    """
    ids = result.prompt_ids + result.token_ids
    longest: Snapshot | None = None
    for one in result.rounds:
        moment = snapshot(ids[: one.start + 1], target, drafter, TREES, settings)
        marginal, conditional = accepted_lengths(moment)
        if marginal != conditional:
            return moment
        if longest is None or conditional > accepted_lengths(longest)[-1]:
            longest = moment
    if longest is None:
        raise InputError("the text has one token, so there is no round to draw: ask for more new tokens")
    return longest


def print_choice(result: Result, moment: Snapshot) -> None:
    """Which round the picture shows, by which rule, and what came of it."""
    number = next(i for i, one in enumerate(result.rounds, start=1) if one.start == len(moment.context_ids))
    lengths = ", ".join(f"{name} {n}" for name, n in zip(TREES, accepted_lengths(moment), strict=True))
    text = (
        f"\nthe picture: round {number}, the first whose two accepted paths differ in length (the longest if none "
        f"does), {PICTURE_BUDGET} nodes a tree; accepted: {lengths}"
    )
    console().print(text, highlight=False, soft_wrap=True)


def accepted_lengths(moment: Snapshot) -> Sequence[int]:
    """How many nodes of each tree the target accepted, in the order of TREES."""
    return [len(moment.verdicts[name].accepted) for name in TREES]


def draw(moment: Snapshot, target: Target, out: Path) -> list[Path]:
    """Both trees of the moment side by side, as PNG and SVG; returns the files."""
    from .viz.style import save
    from .viz.trees import compare_trees

    verdicts = [moment.verdicts[name] for name in TREES]
    figure = compare_trees(
        [verdict.tree for verdict in verdicts],
        TITLES,
        [verdict.accepted for verdict in verdicts],
        lambda token: target.decode([token]),
        [verdict.bonus for verdict in verdicts],
    )
    paths = [out / name for name in PICTURE_NAMES]
    for path in paths:
        save(figure, path)
    return paths
