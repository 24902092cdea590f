"""Ablations: every count against `compare`, or against decoding by hand, on a tiny target."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from toy_models import byte_tokenizer, random_drafter, target_of, tiny_model

from dominotree_lite import ablations
from dominotree_lite.decode import decode
from dominotree_lite.drafter import Drafter
from dominotree_lite.errors import InputError
from dominotree_lite.evaluate import compare, seed_of
from dominotree_lite.intervals import pooled_tau
from dominotree_lite.methods import Settings
from dominotree_lite.prompts import PromptRow
from dominotree_lite.target import Target
from dominotree_lite.verify import Sampling

PROMPTS = [
    PromptRow("one", "short", ("Hi",)),
    PromptRow("two", "long", ("Good morning to you.", "And then?")),
    PromptRow("three", "short", ("Well?",)),
]
SETTINGS = Settings(budget=6, candidates=30, max_new_tokens=9)
WARM = replace(SETTINGS, sampling=Sampling(temperature=0.9))


@pytest.fixture(scope="module")
def target() -> Target:
    return target_of(tiny_model("llama", 258, seed=1), eos=1, tokenizer=byte_tokenizer(chat=True))


@pytest.fixture(scope="module")
def drafters(target: Target) -> dict[str, Drafter]:
    return {kind: random_drafter(target, kind) for kind in ("dflash", "domino")}


def counts(
    target: Target, drafters: dict[str, Drafter], method: str, settings: Settings
) -> tuple[int, int, int | None]:
    """Tokens, rounds and texts like `ar`'s, by `compare`."""
    row = compare(PROMPTS, target, drafters, list(dict.fromkeys(["ar", method])), settings).rows[-1]
    assert (row.method, row.suite) == (method, "all")
    return row.tokens, row.rounds, row.identical_to_ar


def found(ablation: ablations.Ablation) -> dict[str, tuple[int, int, int | None]]:
    return {row.variant: (row.tokens, row.rounds, row.same_as_ar) for row in ablation.rows}


@pytest.mark.parametrize("settings", [SETTINGS, WARM], ids=["greedy", "warm"])
def test_the_ladder_is_what_compare_counts(settings: Settings, target: Target, drafters: dict[str, Drafter]) -> None:
    rungs = ("marginal", "dominotree")
    ablation = ablations.conditioning(PROMPTS, target, drafters, rungs, settings)
    assert found(ablation) == {m: counts(target, drafters, m, settings) for m in ("ar", *rungs)}


def test_candidates_and_budgets_are_what_compare_counts(target: Target, drafters: dict[str, Drafter]) -> None:
    swept = found(ablations.candidates(PROMPTS, target, drafters, (2, None), SETTINGS))
    for name, count in (("M = 2", 2), ("M = the vocabulary", None)):
        assert swept[name] == counts(target, drafters, "dominotree", replace(SETTINGS, candidates=count))
    swept = found(ablations.budgets(PROMPTS, target, drafters, (0, 5), replace(SETTINGS, method="marginal")))
    for name, size in (("0 nodes", 0), ("5 nodes", 5)):
        assert swept[name] == counts(target, drafters, "marginal", replace(SETTINGS, budget=size))
    assert swept["0 nodes"][0] == swept["0 nodes"][1]  # control: without nodes, a token a round


def test_the_head_is_left_out_and_put_back(target: Target, drafters: dict[str, Drafter]) -> None:
    swept = found(ablations.head(PROMPTS, target, drafters, settings=SETTINGS))
    methods = {
        "chain, head never trained": "dflash",
        "chain, head with": "domino",
        "tree, head never trained": "ddtree",
        "tree, head left out": "marginal",
        "tree, head with": "dominotree",
    }
    for name, method in methods.items():
        assert swept[name] == counts(target, drafters, method, SETTINGS)
    # A head whose correction is always zero: the chain of base logits, by the method that corrects.
    mute = random_drafter(target, "domino")
    mute.model.embed_proj[2].weight.data.zero_()
    assert swept["chain, head left out"] == counts(target, {"domino": mute}, "domino", SETTINGS)
    assert list(found(ablations.head(PROMPTS, target, {"domino": mute}, ["tree"], SETTINGS))) == [
        "ar",
        "tree, head left out",
        "tree, head with",
    ]


def test_best_guesses_near_temperature_zero_are_the_greedy_methods(
    target: Target, drafters: dict[str, Drafter]
) -> None:
    cold = replace(SETTINGS, sampling=Sampling(temperature=2e-5), child_cap=6)
    swept = found(ablations.drawing(PROMPTS, target, drafters, settings=cold))
    for name, method in (("chain, best guess", "domino"), ("tree, best guess", "dominotree")):
        assert swept[name][:2] == counts(target, drafters, method, replace(SETTINGS, child_cap=6))[:2]
    # So cold, the drafter's law is all on its best guess, and drawing changes no chain.
    assert swept["chain, drawn"] == swept["chain, best guess"]
    assert all(row[2] is None for row in swept.values())


def test_rows_add_up_prompts_and_carry_their_intervals(target: Target, drafters: dict[str, Drafter]) -> None:
    (plain, tree) = ablations.conditioning(PROMPTS, target, drafters, ["dominotree"], SETTINGS).rows
    results = [decode(p.turns, target, drafters["domino"], replace(SETTINGS, seed=seed_of(p, 0))) for p in PROMPTS]
    taken = [sum(len(r.tokens) for r in result.rounds) for result in results]
    assert tree.tau == pooled_tau(taken, [len(result.rounds) for result in results])
    assert tree.prompts == 3 and tree.tokens == sum(taken)
    assert tree.tokens_per_second == pytest.approx(tree.tokens / tree.seconds)
    assert tree.speedup.value == pytest.approx(tree.tokens_per_second / plain.tokens_per_second)
    assert (plain.speedup.low, plain.speedup.high) == (pytest.approx(1), pytest.approx(1))
    assert tree.speedup.low <= tree.speedup.value <= tree.speedup.high


def test_an_ablation_prints_as_a_table(target: Target, drafters: dict[str, Drafter]) -> None:
    ablation = ablations.budgets(PROMPTS[:1], target, drafters, [3], SETTINGS)
    title, head, *lines = str(ablation).splitlines()
    assert title == "Budgets of dominotree" and head.startswith("variant")
    assert [line.split()[0] for line in lines] == ["ar", "3"]
    assert str(ablation["3 nodes"].tau) in lines[1]
    assert ablation._repr_markdown_().count("|\n") == 4
    with pytest.raises(KeyError):
        ablation["4 nodes"]


@pytest.mark.parametrize(
    ("sweep", "asked", "complaint"),
    [
        ("conditioning", ["ddtre"], "no method 'ddtre'"),
        ("conditioning", [], "nothing"),
        ("budgets", [-1], "budget -1 is too small"),
        ("candidates", [0], "candidates 0 is too small"),
        ("head", ["bush"], "no shape 'bush'"),
        ("drawing", ["tree"], "temperature above 0"),
    ],
)
def test_nonsense_is_refused(
    sweep: str, asked: Sequence[str | int], complaint: str, target: Target, drafters: dict[str, Drafter]
) -> None:
    with pytest.raises(InputError, match=complaint):
        getattr(ablations, sweep)(PROMPTS, target, drafters, asked, SETTINGS)


def test_missing_drafters_prompts_and_corrections_are_told(target: Target, drafters: dict[str, Drafter]) -> None:
    with pytest.raises(InputError, match="needs a domino drafter"):
        ablations.conditioning(PROMPTS, target, {}, settings=SETTINGS)
    with pytest.raises(InputError, match="one prompt or more"):
        ablations.conditioning([], target, drafters, settings=SETTINGS)
    with pytest.raises(InputError, match="corrects no candidates"):
        ablations.candidates(PROMPTS, target, drafters, settings=replace(SETTINGS, method="marginal"))
