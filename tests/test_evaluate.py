"""Comparisons: every number against `generate` run by hand, every divergence against plain logits."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
import transformers
from toy_models import KINDS, byte_tokenizer, plain_logits, random_drafter, target_of, tiny_model

from dominotree_lite import evaluate
from dominotree_lite.decode import Conversation, Result, Settings, decode, generate
from dominotree_lite.drafter import Drafter
from dominotree_lite.errors import InputError
from dominotree_lite.evaluate import compare, first_divergence, usable_methods
from dominotree_lite.files import write_json
from dominotree_lite.prompts import PromptRow
from dominotree_lite.target import Target
from dominotree_lite.verify import Sampling

METHODS = tuple(KINDS)
ROW_KEYS = (
    "method suite prompts tokens rounds tau seconds tokens_per_second speedup identical_to_ar"  # as documented
).split()
PROMPTS = [
    PromptRow("one", "short", ("Hi",)),
    PromptRow("two", "long", ("Good morning to you.", "And then?")),
    PromptRow("three", "short", ("Well?",)),
]
SETTINGS = Settings(budget=6, candidates=30, max_new_tokens=9)
OPTIONS = {"budget": 6, "candidates": 30, "max_new_tokens": 9}
Change = Callable[[Result], Result]


@pytest.fixture(scope="module")
def target() -> Target:
    return target_of(tiny_model("llama", 258, seed=1), eos=1, tokenizer=byte_tokenizer(chat=True))


@pytest.fixture(scope="module")
def drafters(target: Target) -> dict[str, Drafter]:
    return {kind: random_drafter(target, kind) for kind in ("dflash", "domino")}


@pytest.fixture(scope="module")
def by_hand(target: Target, drafters: dict[str, Drafter]) -> dict[tuple[str, str], Result]:
    """The result of each method on each prompt, from the public function."""
    return {
        (method, row.id): generate(
            list(row.turns), target, None if kind is None else drafters[kind], method=method, **OPTIONS
        )
        for row in PROMPTS
        for method, kind in KINDS.items()
    }


@pytest.fixture
def tampered(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, Change], None]:
    """Makes one method's result on one prompt another one, from the turn that is changed on."""

    def tamper(method: str, first_turn: str, change: Change) -> None:
        def wrong(prompt: Sequence[str], target: Target, drafter: Drafter | None, settings: Settings) -> Result:
            result = decode(prompt, target, drafter, settings)
            return change(result) if (settings.method, prompt[0]) == (method, first_turn) else result

        monkeypatch.setattr(evaluate, "decode", wrong)

    return tamper


def other_token(result: Result, at: int) -> Result:
    """The result with another token at `at`, and other ones behind it."""
    tokens = [token if i < at else (token + 1) % 258 for i, token in enumerate(result.token_ids)]
    return dataclasses.replace(result, token_ids=tokens)


def other_last_turn(result: Result, at: int) -> Result:
    assert isinstance(result, Conversation)
    return Conversation.of([*result.turns[:-1], other_token(result.turns[-1], at)])


# --- Numbers -------------------------------------------------------------------------------------------------


def test_rows_add_up_what_generate_returns(
    target: Target, drafters: dict[str, Drafter], by_hand: dict[tuple[str, str], Result]
) -> None:
    comparison = compare(PROMPTS, target, drafters, METHODS, SETTINGS)
    members = {"short": ["one", "three"], "long": ["two"], "all": ["one", "two", "three"]}
    assert [(row.suite, row.method) for row in comparison.rows] == [(s, m) for s in members for m in METHODS]
    turns = {row.id: len(row.turns) for row in PROMPTS}
    for row in comparison.rows:
        results = {id: by_hand[row.method, id] for id in members[row.suite]}
        # One token a turn comes from prefill and not from a round.
        tokens = sum(len(result.token_ids) - turns[id] for id, result in results.items())
        rounds = sum(len(result.rounds) for result in results.values())
        assert (row.prompts, row.tokens, row.rounds) == (len(results), tokens, rounds)
        assert row.tau == pytest.approx(tokens / rounds)
        assert row.tokens_per_second == pytest.approx(row.tokens / row.seconds)
        same = sum(result.token_ids == by_hand["ar", id].token_ids for id, result in results.items())
        assert row.identical_to_ar == same == len(results)
    assert comparison.divergences == []


def test_speedup_is_the_ratio_of_tokens_per_second_in_the_same_suite(
    target: Target, drafters: dict[str, Drafter]
) -> None:
    rows = compare(PROMPTS, target, drafters, ("domino", "ar", "dominotree"), SETTINGS).rows
    rate = {(row.suite, row.method): row.tokens_per_second for row in rows}
    assert len(rate) == 9
    for row in rows:
        assert row.speedup == pytest.approx(row.tokens_per_second / rate[row.suite, "ar"])


def test_records_are_the_parts_of_the_rows(
    target: Target, drafters: dict[str, Drafter], by_hand: dict[tuple[str, str], Result]
) -> None:
    comparison = compare(PROMPTS, target, drafters, ("ar", "marginal"), SETTINGS)
    records = comparison.records_json()
    assert [(r["id"], r["method"]) for r in records] == [(p.id, m) for p in PROMPTS for m in ("ar", "marginal")]
    assert {r["id"]: r["suite"] for r in records} == {row.id: row.suite for row in PROMPTS}
    for row in comparison.rows:
        own = [r for r in records if r["method"] == row.method and row.suite in ("all", r["suite"])]
        assert row.tokens == sum(r["tokens"] for r in own)
        assert row.seconds == pytest.approx(sum(r["seconds"] for r in own))
        staged = comparison.stages(row.method, row.suite)
        assert sum(staged.values()) * row.rounds / 1000 == pytest.approx(sum(sum(r["stages"].values()) for r in own))
        assert sum(sum(r["stages"].values()) for r in own) <= row.seconds
    hashes = {(r["method"], r["id"]): r["token_sha256"] for r in records}
    for one in PROMPTS:
        assert hashes["ar", one.id] == hashes["marginal", one.id]
    assert len(set(hashes.values())) == len({tuple(by_hand["ar", one.id].token_ids) for one in PROMPTS})


def test_a_text_without_rounds_has_no_rates(target: Target, drafters: dict[str, Drafter]) -> None:
    settings = dataclasses.replace(SETTINGS, max_new_tokens=1)
    comparison = compare(PROMPTS[:1], target, drafters, ("ar", "dominotree"), settings)
    for row in comparison.rows:
        assert (row.tokens, row.rounds, row.tau, row.tokens_per_second, row.speedup) == (0, 0, 0.0, 0.0, None)
    json.dumps(comparison.to_json(), allow_nan=False)
    assert set(comparison.stages("ar").values()) == {0.0}


def test_every_method_runs_on_a_prompt_before_the_next_and_is_warm(
    target: Target, drafters: dict[str, Drafter], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, int, int, str]] = []

    def noted(prompt: Sequence[str], target: Target, drafter: Drafter | None, settings: Settings) -> Result:
        calls.append((prompt[0], len(prompt), settings.max_new_tokens, settings.method))
        return decode(prompt, target, drafter, settings)

    monkeypatch.setattr(evaluate, "decode", noted)
    done: list[str] = []
    compare(PROMPTS, target, drafters, ("ar", "domino"), SETTINGS, lambda row: done.append(row.id))
    warm = [("Hi", 1, 8, method) for method in ("ar", "domino")]
    timed = [(row.turns[0], len(row.turns), 9, method) for row in PROMPTS for method in ("ar", "domino")]
    assert calls == warm + timed
    assert done == [row.id for row in PROMPTS]


# --- Against plain decoding ----------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 1, 5])
def test_another_token_is_found_with_its_margin(
    target: Target,
    drafters: dict[str, Drafter],
    by_hand: dict[tuple[str, str], Result],
    tampered: Callable[[str, str, Change], None],
    at: int,
) -> None:
    tampered("dominotree", "Well?", lambda result: other_token(result, at))
    comparison = compare(PROMPTS, target, drafters, ("ar", "domino", "dominotree"), SETTINGS)
    plain = by_hand["ar", "three"]
    logits = plain_logits(target.model, plain.prompt_ids + plain.token_ids[:at])[-1]
    margin = float(logits.max() - logits[(plain.token_ids[at] + 1) % 258])
    assert margin > 0
    (found,) = comparison.divergences
    assert (found.id, found.method, found.position) == ("three", "dominotree", at)
    assert found.margin == pytest.approx(margin, abs=1e-4)
    same = {(row.suite, row.method): row.identical_to_ar for row in comparison.rows}
    assert same["short", "dominotree"] == 1 and same["long", "dominotree"] == 1 and same["all", "dominotree"] == 2
    assert same["all", "domino"] == same["all", "ar"] == 3
    written = {(r["id"], r["method"]): (r["position"], r["margin"]) for r in comparison.records_json()}
    assert written.pop(("three", "dominotree")) == (at, found.margin)
    assert set(written.values()) == {(None, None)}


def test_another_token_in_a_later_turn_counts_all_turns_before(
    target: Target,
    drafters: dict[str, Drafter],
    by_hand: dict[tuple[str, str], Result],
    tampered: Callable[[str, str, Change], None],
) -> None:
    tampered("marginal", PROMPTS[1].turns[0], lambda result: other_last_turn(result, 2))
    (found,) = compare(PROMPTS, target, drafters, ("ar", "marginal"), SETTINGS).divergences
    plain = by_hand["ar", "two"]
    assert isinstance(plain, Conversation)
    first, second = plain.turns
    assert found.position == len(first.token_ids) + 2
    logits = plain_logits(target.model, second.prompt_ids + second.token_ids[:2])[-1]
    assert found.margin == pytest.approx(float(logits.max() - logits[(second.token_ids[2] + 1) % 258]), abs=1e-4)


def test_a_text_that_merely_ends_has_no_margin(target: Target, by_hand: dict[tuple[str, str], Result]) -> None:
    plain = by_hand["ar", "one"]
    short = dataclasses.replace(plain, token_ids=plain.token_ids[:4])
    for ours, theirs in ((short, plain), (plain, short)):
        found = first_divergence("one", "domino", ours, theirs, target)
        assert found is not None
        assert (found.position, found.margin) == (4, None)
    assert first_divergence("one", "ar", plain, plain, target) is None


def test_without_a_greedy_baseline_nothing_is_called_identical(target: Target, drafters: dict[str, Drafter]) -> None:
    warm = dataclasses.replace(SETTINGS, sampling=Sampling(temperature=1.0))
    sampled = compare(PROMPTS, target, drafters, ("ar", "dominotree"), warm)
    assert {row.identical_to_ar for row in sampled.rows} == {None}
    assert None not in {row.speedup for row in sampled.rows}
    assert sampled.divergences == []
    alone = compare(PROMPTS, target, drafters, ("domino", "dominotree"), SETTINGS)
    assert {(row.speedup, row.identical_to_ar) for row in alone.rows} == {(None, None)}


# --- JSON ----------------------------------------------------------------------------------------------------


def test_the_json_has_the_documented_shape(target: Target, drafters: dict[str, Drafter], tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, candidates=None, seed=7, sampling=Sampling(0.5, 3, 0.9))
    comparison = compare(PROMPTS, target, drafters, ("ar", "ddtree"), settings)
    write_json(tmp_path / "new" / "out.json", comparison.to_json())
    read = json.loads((tmp_path / "new" / "out.json").read_text())
    assert list(read) == ["settings", "rows", "divergences"]
    assert all(list(row) == ROW_KEYS for row in read["rows"])
    assert read["rows"] == [dataclasses.asdict(row) for row in comparison.rows]
    used = read["settings"]
    assert set(used.pop("machine")) == {"processor", "cpus", "gpu"}
    assert used == {
        "target": "toy",
        "drafters": {"dflash": "random dflash", "domino": "random domino"},
        "methods": ["ar", "ddtree"],
        "dtype": "float32",
        "linear": "plain",
        "device": "cpu",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "budget": 6,
        "max_budget": 256,
        "child_cap": None,
        "slots": None,
        "max_new_tokens": 9,
        "seed": 7,
        "engine": "eager",
        "candidates": "full",
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.9,
    }


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"a": float("nan")})
    assert json.loads(path.read_text()) == {"a": 1}
    write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2}
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]


def test_a_place_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file/out\.json: can't be written"):
        write_json(tmp_path / "file" / "out.json", {})
    with pytest.raises(InputError, match="it is a folder"):
        write_json(tmp_path, {})


# --- Refusals ------------------------------------------------------------------------------------------------


def test_methods_follow_from_the_drafters(drafters: dict[str, Drafter]) -> None:
    assert usable_methods(drafters) == list(METHODS)
    assert usable_methods({}) == ["ar"]
    assert usable_methods({"dflash": drafters["dflash"]}) == ["ar", "dflash", "ddtree"]


@pytest.mark.parametrize(
    ("methods", "prompts", "said"),
    [
        (["tree"], PROMPTS, "no method 'tree'"),
        (["ar", "ar"], PROMPTS, "each once"),
        ([], PROMPTS, "one or more"),
        (["ar", "ddtree"], PROMPTS, "ddtree needs a dflash drafter, none was given"),
        (["ar"], [], "no prompts"),
        (["ar"], [PROMPTS[0], PromptRow("huge", "a", ("x" * 600,))], "prompt huge: .* tokens, toy takes 1 to 512"),
    ],
)
def test_what_can_not_run_is_refused_before_anything_runs(
    target: Target,
    drafters: dict[str, Drafter],
    monkeypatch: pytest.MonkeyPatch,
    methods: list[str],
    prompts: list[PromptRow],
    said: str,
) -> None:
    monkeypatch.setattr(evaluate, "decode", lambda *_: pytest.fail("something ran"))
    with pytest.raises(InputError, match=said):
        compare(prompts, target, {"domino": drafters["domino"]}, methods, SETTINGS)


def test_a_later_turn_beyond_the_positions_names_its_prompt(target: Target) -> None:
    row = PromptRow("two-part", "a", ("Hi", "x" * 485))  # fits without the first answer, not with it
    with pytest.raises(InputError, match="prompt two-part, method ar: .*512 positions"):
        compare([row], target, {}, ["ar"], SETTINGS)
