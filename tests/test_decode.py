"""The round loop: where a text ends, what is reported, and that nothing leaks from one request to the next.

`counting_model` continues 3 by 4, 5, 6 ...; with an oracle drafter every round then accepts all it drafted,
so that EOS, stop strings and length limits can be put at any place of a block.
"""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from toy_models import (
    ADAPTIVE,
    KINDS,
    TREES,
    byte_tokenizer,
    cached_model,
    counting_model,
    greedy,
    margin,
    oracle_drafter,
    plain_logits,
    random_drafter,
    random_for,
    target_of,
    tiny_model,
)
from transformers import PreTrainedModel

from dominotree_lite.decode import METHODS, Conversation, Result, Settings, generate
from dominotree_lite.drafter import Drafter
from dominotree_lite.errors import InputError
from dominotree_lite.target import Target

all_methods = pytest.mark.parametrize("method", KINDS)
drafting = pytest.mark.parametrize("method", [name for name in KINDS if name != "ar"])
BLOCK = 6


@pytest.fixture(scope="module")
def counter() -> PreTrainedModel:
    return counting_model()


@pytest.fixture(scope="module")
def short() -> PreTrainedModel:
    return tiny_model("qwen3", positions=64, seed=2)


def oracle_for(method: str, target: Target, prompt: Sequence[int], count: int, **options: Any) -> Drafter | None:
    kind = KINDS[method]
    return None if kind is None else oracle_drafter(target, prompt, count, kind, **options)


def check_records(result: Result, prompt: Sequence[int]) -> None:
    """The rounds tell the same story as the tokens."""
    tokens, start = result.token_ids[:1], len(prompt)
    assert result.prompt_ids == list(prompt)
    for round_ in result.rounds:
        assert round_.start == start
        assert round_.tree.anchor == tokens[-1]
        whole = [int(round_.tree.tokens[n]) for n in round_.accepted] + [round_.bonus]
        assert round_.accepted == (round_.tree.path(round_.accepted[-1]) if round_.accepted else [])
        assert 1 <= len(round_.tokens) and round_.tokens == whole[: len(round_.tokens)]
        tokens, start = tokens + round_.tokens, start + len(whole)
    assert tokens == result.token_ids
    if result.rounds:
        assert all(len(r.tokens) == len(r.accepted) + 1 for r in result.rounds[:-1])
        assert result.tau == (len(tokens) - 1) / len(result.rounds)


def test_the_methods_and_their_drafters() -> None:
    assert {name: method and method.drafter for name, method in METHODS.items()} == KINDS | ADAPTIVE


# --- Alignment ---------------------------------------------------------------------------------------------------


@drafting
@pytest.mark.parametrize("shift", [False, True], ids=["plain", "shift"])
@pytest.mark.parametrize("slots", [None, 1, 3])
def test_an_oracle_drafter_gives_tau_of_the_slots_drafted_plus_one(method: str, shift: bool, slots: int | None) -> None:
    target = target_of(cached_model())
    per_round = (slots or BLOCK - 1 + shift) + 1
    count = 1 + 3 * per_round
    for prompt in ([9], [9, 3], list(range(20))):
        drafter = oracle_for(method, target, prompt, 25, shift=shift, block=BLOCK)
        result = generate(prompt, target, drafter, method=method, slots=slots, budget=9, max_new_tokens=count)
        assert result.token_ids == greedy(target.model, prompt, 25)[:count]
        assert [len(r.tokens) for r in result.rounds] == [per_round] * 3
        assert result.tau == per_round
        check_records(result, prompt)


@pytest.mark.parametrize("method", TREES)
@pytest.mark.parametrize("budget", [0, 1, 2, 4, 5, 6])
def test_a_small_budget_bounds_what_an_oracle_gives(method: str, budget: int) -> None:
    target, prompt = target_of(cached_model("qwen3")), [4, 4]
    per_round = min(budget, BLOCK) + 1
    drafter = oracle_for(method, target, prompt, 1 + 2 * per_round, shift=True, block=BLOCK)
    result = generate(prompt, target, drafter, method=method, budget=budget, max_new_tokens=1 + 2 * per_round)
    assert result.tau == per_round
    assert all(len(r.tree) == budget for r in result.rounds[:1])


# --- Length ------------------------------------------------------------------------------------------------------


@all_methods
@pytest.mark.parametrize("oracle", [True, False], ids=["oracle", "random"])
def test_the_number_of_new_tokens_is_exact(method: str, oracle: bool) -> None:
    target, prompt = target_of(cached_model()), [7, 7, 1]
    wanted = greedy(target.model, prompt, 20)
    drafter = oracle_for(method, target, prompt, 20, shift=True) if oracle else random_for(method, target)
    for count in (0, 1, 2, BLOCK - 1, BLOCK, BLOCK + 1, BLOCK + 2, 2 * BLOCK + 1):
        result = generate(prompt, target, drafter, method=method, max_new_tokens=count)
        assert result.token_ids == wanted[:count]
        check_records(result, prompt)


def test_an_empty_result_has_no_rates() -> None:
    result = generate([1], target_of(cached_model()), method="ar", max_new_tokens=0)
    assert (result.token_ids, result.rounds, result.tau, result.tokens_per_second) == ([], [], 0.0, 0.0)
    assert result.text == ""


@all_methods
@pytest.mark.parametrize("oracle", [True, False], ids=["oracle", "random"])
def test_a_text_goes_up_to_the_last_position_and_no_further(method: str, oracle: bool, short: PreTrainedModel) -> None:
    target = target_of(short)
    for length in range(60, 65):
        prompt = [(5 * i) % 50 for i in range(length)]
        last = 64 - length + 1  # what position 63 predicts still comes out
        options = {"shift": True, "block": 16}
        drafter = (
            oracle_for(method, target, prompt, last, **options) if oracle else random_for(method, target, **options)
        )
        result = generate(prompt, target, drafter, method=method, budget=32, max_new_tokens=100)
        assert result.token_ids == greedy(short, prompt, last)
        assert all(r.start + int(r.tree.depths.max()) < 64 for r in result.rounds)


def test_a_prompt_beyond_the_positions_is_refused_in_one_line(short: PreTrainedModel) -> None:
    with pytest.raises(InputError, match="65 tokens.*64 positions") as refused:
        generate([1] * 65, target_of(short), method="ar")
    assert "\n" not in str(refused.value)


# --- EOS ---------------------------------------------------------------------------------------------------------


@all_methods
@pytest.mark.parametrize("shift", [False, True], ids=["plain", "shift"])
def test_eos_ends_the_text_at_every_depth_of_a_block(method: str, shift: bool, counter: PreTrainedModel) -> None:
    prompt = [30, 3]
    drafter = oracle_for(method, target_of(counter), prompt, 20, shift=shift, block=BLOCK)
    for length in range(1, 10):
        target = target_of(counter, eos=[3 + length, 2])
        result = generate(prompt, target, drafter, method=method, max_new_tokens=20)
        assert result.token_ids == list(range(4, 4 + length)) == greedy(counter, prompt, 20)
        check_records(result, prompt)
        assert length > 1 or result.rounds == []


@all_methods
def test_each_of_several_eos_ids_ends_the_text(method: str, counter: PreTrainedModel) -> None:
    prompt = [3]
    drafter = oracle_for(method, target_of(counter), prompt, 20)
    for eos, wanted in (([9, 6], [4, 5, 6]), ([6, 9], [4, 5, 6]), ([9], [4, 5, 6, 7, 8, 9]), ([60, 5], [4, 5])):
        target = target_of(counter, eos=eos)
        assert generate(prompt, target, drafter, method=method, max_new_tokens=20).token_ids == wanted


@drafting
def test_an_eos_that_is_drafted_and_rejected_stops_nothing(method: str) -> None:
    model, prompt = cached_model(), [12, 5]
    plain = target_of(model)
    wanted = greedy(model, prompt, 24)
    drafter = oracle_for(method, plain, prompt, 24, wrong=0.5)
    first = generate(prompt, plain, drafter, method=method, budget=20, max_new_tokens=24)
    drafted = {int(t) for r in first.rounds for t in r.tree.tokens[1:]}
    eos = sorted(drafted - set(wanted))
    assert eos
    second = generate(prompt, target_of(model, eos=eos), drafter, method=method, budget=20, max_new_tokens=24)
    assert second.token_ids == first.token_ids == wanted


@all_methods
def test_an_eos_in_the_prompt_stops_nothing(method: str, counter: PreTrainedModel) -> None:
    prompt = [10, 11, 3]
    drafter = oracle_for(method, target_of(counter), prompt, 9)
    result = generate(prompt, target_of(counter, eos=[3, 8]), drafter, method=method, max_new_tokens=9)
    assert result.token_ids == [4, 5, 6, 7, 8]


# --- Stop strings ------------------------------------------------------------------------------------------------

TEXT = "ab, cd.é!\n"  # no byte twice; the é has two tokens


@pytest.fixture(scope="module")
def reciter() -> PreTrainedModel:
    """Recites TEXT, then whatever else there is."""
    ids = byte_tokenizer()(TEXT)["input_ids"]
    assert len(ids) == len(set(ids))
    return counting_model(258, [*ids, *sorted(set(range(258)) - set(ids))])


@all_methods
def test_a_stop_string_ends_the_text_wherever_it_lies(method: str, reciter: PreTrainedModel) -> None:
    tokenizer = byte_tokenizer()
    prompt = tokenizer(TEXT[0])["input_ids"]
    drafter = oracle_for(method, target_of(reciter), prompt, 16, block=4)  # rounds of 4: borders everywhere
    target = target_of(reciter, tokenizer=tokenizer)
    for stop in (TEXT[i:j] for i in range(1, len(TEXT)) for j in range(i + 1, min(i + 4, len(TEXT)) + 1)):
        pieces: list[str] = []
        result = generate(
            TEXT[0], target, drafter, method=method, max_new_tokens=16, stop=["no", stop], on_text=pieces.append
        )
        place = TEXT.index(stop)
        assert result.token_ids == tokenizer(TEXT[1 : place + len(stop)])["input_ids"]
        assert result.text == "".join(pieces) == TEXT[1:place]
        assert all(pieces)
        check_records(result, prompt)


@pytest.mark.parametrize("method", ["ar", "dflash", "dominotree"])
@pytest.mark.parametrize(
    ("count", "tokens", "text"),
    [(2, "b,", "b,"), (3, "b, ", "b,"), (4, "b, c", "b"), (5, "b, c", "b"), (6, "b, c", "b")],
)
def test_a_stop_string_and_the_length_limit_in_one_block(
    method: str, count: int, tokens: str, text: str, reciter: PreTrainedModel
) -> None:
    tokenizer = byte_tokenizer()
    drafter = oracle_for(method, target_of(reciter), tokenizer("a")["input_ids"], 12, block=8)
    target, pieces = target_of(reciter, tokenizer=tokenizer), list[str]()
    stop = [", c", "zz"]
    result = generate("a", target, drafter, method=method, max_new_tokens=count, stop=stop, on_text=pieces.append)
    assert result.token_ids == tokenizer(tokens)["input_ids"]
    # 3 tokens end inside what could become the stop string: it is text then
    assert result.text == "".join(pieces) == (tokens if count < 4 else text)


def test_one_stop_string_may_be_given_bare(reciter: PreTrainedModel) -> None:
    target = target_of(reciter, tokenizer=byte_tokenizer())
    assert generate("a", target, method="ar", max_new_tokens=9, stop="cd").text == "b, "


@all_methods
def test_an_eos_is_no_text_and_a_cut_character_is_replaced(method: str, reciter: PreTrainedModel) -> None:
    tokenizer, pieces = byte_tokenizer(), list[str]()
    drafter = oracle_for(method, target_of(reciter), tokenizer("d")["input_ids"], 12, block=4)
    target = target_of(reciter, tokenizer=tokenizer)
    result = generate("d", target, drafter, method=method, max_new_tokens=2, on_text=pieces.append)
    assert result.text == "".join(pieces) == ".\ufffd"


@pytest.mark.parametrize("method", ["ar", "domino", "dominotree"])
def test_streamed_pieces_join_to_the_text_of_any_model(method: str) -> None:
    tokenizer = byte_tokenizer()
    target = target_of(tiny_model(vocabulary=258), tokenizer=tokenizer)
    for seed in range(3):
        pieces: list[str] = []
        result = generate(
            "é",
            target,
            random_for(method, target),
            method=method,
            temperature=1.0,
            seed=seed,
            max_new_tokens=24,
            on_text=pieces.append,
        )
        assert "".join(pieces) == result.text == tokenizer.decode(result.token_ids, skip_special_tokens=True)
        assert len(pieces) > 1


# --- Tokens that look special ------------------------------------------------------------------------------------


@drafting
def test_the_mask_token_survives_in_prompt_and_text(method: str, counter: PreTrainedModel) -> None:
    target, prompt = target_of(counter), [6, 6, 3]
    drafter = oracle_for(method, target, prompt, 12, mask=6)
    result = generate(prompt, target, drafter, method=method, max_new_tokens=12)
    assert result.token_ids == list(range(4, 16))
    assert result.tau > 3


@all_methods
@pytest.mark.parametrize("prompt", [[0], [1], [62, 0, 1]])
def test_ids_0_and_1_are_tokens_like_others(method: str, prompt: list[int]) -> None:
    model = counting_model(4, [0, 1, 3, 2])
    target = target_of(model)
    prompt = [i % 4 for i in prompt]
    drafter = oracle_for(method, target, prompt, 13, mask=0)
    result = generate(prompt, target, drafter, method=method, max_new_tokens=13, budget=40)
    assert result.token_ids == greedy(model, prompt, 13)
    if method != "ar":
        assert result.tau == 6


# --- Sampling ----------------------------------------------------------------------------------------------------


@all_methods
def test_a_seed_fixes_the_text_and_another_seed_changes_it(method: str) -> None:
    target = target_of(cached_model())

    def run(seed: int) -> Result:
        drafter = random_for(method, target)
        return generate([3], target, drafter, method=method, temperature=1.0, seed=seed, max_new_tokens=20)

    one, again, other = run(5), run(5), run(6)
    assert one.token_ids == again.token_ids != other.token_ids
    assert [r.tree.to_json() for r in one.rounds] == [r.tree.to_json() for r in again.rounds]


@all_methods
@pytest.mark.parametrize("temperature", [0, 1e-6, 1e-5, 1e-4])
def test_small_temperatures_are_greedy(method: str, temperature: float) -> None:
    target, prompt = target_of(cached_model()), [3, 1]
    wanted = greedy(target.model, prompt, 12)
    assert margin(target.model, prompt, wanted) > 1e-2  # 100 times the largest temperature
    drafter = random_for(method, target)
    result = generate(prompt, target, drafter, method=method, temperature=temperature, max_new_tokens=12)
    assert result.token_ids == wanted


@all_methods
@pytest.mark.parametrize(("top_k", "top_p"), [(1, 1.0), (0, 1e-6), (3, 1.0), (0, 0.5)])
def test_top_k_and_top_p_bind_every_token(method: str, top_k: int, top_p: float) -> None:
    target = target_of(cached_model())
    drafter = random_for(method, target)
    result = generate(
        [3, 1], target, drafter, method=method, temperature=1.3, top_k=top_k, top_p=top_p, max_new_tokens=16
    )
    rows = plain_logits(target.model, [3, 1, *result.token_ids])[1:-1] / 1.3
    for row, token in zip(rows, result.token_ids, strict=True):
        above = row > row[token]
        assert int(above.sum()) < (top_k or 50)
        assert float(row.softmax(-1)[above].sum()) < top_p + 1e-5
    if top_k == 1 or top_p < 1e-3:
        assert result.token_ids == greedy(target.model, [3, 1], 16)


# --- One request after another -----------------------------------------------------------------------------------


@all_methods
def test_an_earlier_request_leaves_nothing_behind(method: str) -> None:
    target = target_of(cached_model("qwen3"))
    drafter = random_for(method, target)

    def run(prompt: list[int]) -> tuple[list[int], list[Any]]:
        result = generate(prompt, target, drafter, method=method, max_new_tokens=15)
        return result.token_ids, [(r.start, r.accepted, r.bonus, r.tree.to_json()) for r in result.rounds]

    alone = run([8, 8, 30])
    run([1] * 30)
    assert run([8, 8, 30]) == alone
    fresh = generate([8, 8, 30], target, random_for(method, target), method=method, max_new_tokens=15)
    assert fresh.token_ids == alone[0]


@pytest.mark.parametrize("method", ["ar", "ddtree", "dominotree"])
@pytest.mark.parametrize("chat", [True, False], ids=["template", "raw"])
def test_a_conversation_is_its_turns_by_hand(method: str, chat: bool) -> None:
    target = target_of(tiny_model(vocabulary=258), tokenizer=byte_tokenizer(chat))
    drafter = random_for(method, target)

    def ask(prompt: Any) -> Result:
        return generate(prompt, target, drafter, method=method, max_new_tokens=9)

    whole = ask(["Hi", "And?"])
    first = ask("Hi")
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "And?"},
    ]
    second = ask(target.encode(messages))
    assert isinstance(whole, Conversation)
    assert [turn.token_ids for turn in whole.turns] == [first.token_ids, second.token_ids]
    assert [turn.prompt_ids for turn in whole.turns] == [first.prompt_ids, second.prompt_ids]
    assert whole.token_ids == first.token_ids + second.token_ids
    assert whole.text == f"{first.text}\n\n{second.text}"
    assert len(whole.rounds) == len(first.rounds) + len(second.rounds)
    assert whole.prompt_ids == second.prompt_ids
    emitted = sum(len(turn.token_ids) - 1 for turn in whole.turns)
    assert whole.tau == emitted / len(whole.rounds)


def test_turns_do_not_share_their_draws() -> None:
    model = tiny_model(vocabulary=258)
    torch.nn.init.zeros_(model.get_output_embeddings().weight)  # any token is as likely as any other
    target = target_of(model, tokenizer=byte_tokenizer(False))
    whole = generate(["Hi", "And?"], target, method="ar", max_new_tokens=9, temperature=1.0, seed=1)
    assert isinstance(whole, Conversation)
    first, second = (turn.token_ids for turn in whole.turns)
    assert sum(a == b for a, b in zip(first, second, strict=False)) < 3


def test_a_prompt_may_be_a_list_a_tuple_or_a_tensor_of_ids() -> None:
    target = target_of(cached_model())
    wanted = greedy(target.model, [5, 6, 7], 5)
    for prompt in ([5, 6, 7], (5, 6, 7), torch.tensor([5, 6, 7]), torch.tensor([[5, 6, 7]])):
        assert generate(prompt, target, method="ar", max_new_tokens=5).token_ids == wanted


# --- Refusals ----------------------------------------------------------------------------------------------------


def refused_line(prompt: Any, target: Target, drafter: Drafter | None = None, **options: Any) -> str:
    with pytest.raises(InputError) as refused:
        generate(prompt, target, drafter, **options)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@all_methods
def test_a_method_without_its_kind_of_drafter_is_refused(method: str) -> None:
    target, kind = target_of(cached_model()), KINDS[method]
    if kind is None:
        assert generate([1], target, random_drafter(target, "dflash"), method=method, max_new_tokens=3).token_ids
        return
    other = {"dflash": "domino", "domino": "dflash"}[kind]
    assert f"{method} needs a {kind} drafter" in refused_line([1], target, None, method=method)
    line = refused_line([1], target, random_drafter(target, other), method=method)
    assert f"{method} needs a {kind} drafter" in line and f"random {other}" in line


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "magic"}, "magic"),
        ({"budget": -1}, "budget -1"),
        ({"candidates": 0}, "candidates 0"),
        ({"child_cap": 0}, "child_cap 0"),
        ({"slots": 0}, "slots 0"),
        ({"max_new_tokens": -1}, "max_new_tokens -1"),
        ({"stop": [""]}, "stop string"),
        ({"stop": ""}, "stop string"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p 0"),
    ],
)
def test_impossible_settings_are_refused(options: dict[str, Any], words: str) -> None:
    assert words in refused_line([1], target_of(cached_model()), **{"method": "ar", **options})


@pytest.mark.parametrize("prompt", [[], (), torch.tensor([], dtype=torch.int64), "", [""]], ids=str)
def test_an_empty_prompt_is_refused(prompt: Any) -> None:
    target = target_of(tiny_model(vocabulary=258), tokenizer=byte_tokenizer())
    assert "prompt is empty" in refused_line(prompt, target, method="ar")


@pytest.mark.parametrize("prompt", [torch.tensor([[1, 2], [3, 4]]), torch.tensor([0.5, 1.5])], ids=["batch", "floats"])
def test_a_tensor_that_is_no_row_of_ids_is_refused(prompt: torch.Tensor) -> None:
    assert "token ids" in refused_line(prompt, target_of(cached_model()), method="ar")


def test_text_for_a_target_without_a_tokenizer_is_refused() -> None:
    assert "no tokenizer" in refused_line("Hi", target_of(cached_model()), method="ar")


def test_settings_know_their_child_cap() -> None:
    assert Settings(budget=64, candidates=512).most_children == 64
    assert Settings(budget=64, candidates=8).most_children == 8
    assert Settings(budget=64, candidates=None).most_children == 64
    assert Settings(budget=64, child_cap=3).most_children == 3
