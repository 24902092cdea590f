"""Rows decoded side by side: transformers' own greedy decoding, enumerated laws, and what ends a turn or a row."""

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from tiny_training import BOS, END, TURN, tiny_llama, tiny_qwen3
from transformers import GenerationConfig

from dominotree_lite.target import Target
from dominotree_lite.train.sampler import WIDTH, Rules, Sampler, Start, Written

NEVER = frozenset[int]()
RULES = Rules(40, 20, [TURN, 7, 9], frozenset({END, 30}), frozenset({END}), 1.0, 0.0)
PROMPTS = [[BOS, 11], [BOS, 40, 41, 42, 43, 44, 45], [BOS], [BOS, 5, 6, 9, 30], [BOS, 200, 100, END, 50]]


def double(target: Target) -> Target:
    return Target(target.model.double(), target.tokenizer, target.name)


@pytest.fixture(scope="module", params=[tiny_llama, tiny_qwen3])
def target(request: pytest.FixtureRequest) -> Target:
    return double(request.param())


@pytest.fixture(scope="module")
def small() -> Target:
    """Eight tokens, so that a law can be enumerated."""
    return double(tiny_llama(8))


def greedy(target: Target, prompt: list[int], length: int) -> list[int]:
    """The whole row as transformers writes it."""
    settings = GenerationConfig(
        do_sample=False, max_new_tokens=length - len(prompt), eos_token_id=END, pad_token_id=END
    )
    ids = torch.tensor([prompt], device=target.device)
    out = target.model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=settings)
    return out[0].tolist()


def law(target: Target, prompt: list[int], temperature: float, min_p: float = 0.0) -> torch.Tensor:
    """Probabilities [V] of the next token, from one plain pass."""
    with torch.no_grad():
        logits = target.model(torch.tensor([prompt])).logits[0, -1]
    probabilities = (logits / temperature).softmax(0)
    kept = torch.where(probabilities < min_p * probabilities.max(), 0, probabilities)
    return kept / kept.sum()


def chi_square(counts: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """In standard deviations of its law, near 0 if the counts follow the probabilities."""
    total = counts.total()
    large = {key: p * total for key, p in expected.items() if p * total >= 5}
    rest = total - sum(large.values())
    terms = [(counts[key] - mean) ** 2 / mean for key, mean in large.items()]
    if rest >= 5:
        terms.append((total - sum(counts[key] for key in large) - rest) ** 2 / rest)
    freedom = len(terms) - 1
    return (sum(terms) - freedom) / math.sqrt(2 * freedom)


# --- greedy rows ------------------------------------------------------------------------------------------


def test_greedy_rows_equal_transformers_greedy_decoding(target: Target) -> None:
    rows = Sampler(target, RULES, 5).write([Start(p, len(p), 0.0) for p in PROMPTS], 0)
    assert [row.ids for row in rows] == [greedy(target, prompt, RULES.length) for prompt in PROMPTS]
    assert [row.reply for row in rows] == [len(prompt) for prompt in PROMPTS]


def test_rows_that_outgrow_the_first_width_stay_what_plain_passes_say(target: Target) -> None:
    rules = replace(RULES, length=WIDTH + 12, eos=NEVER)
    for row in Sampler(target, rules, 5).write([Start(p, len(p), 0.0) for p in PROMPTS], 0):
        with torch.no_grad():
            likeliest = target.model(torch.tensor([row.ids])).logits[0].argmax(-1).tolist()
        assert len(row.ids) == rules.length
        assert row.ids[row.reply :] == likeliest[row.reply - 1 : -1]


def test_the_company_of_a_row_and_idle_slots_change_nothing(target: Target) -> None:
    alone = Sampler(target, RULES, 1)
    mixed = [Start(prompt, len(prompt), 0.7 * (i % 2)) for i, prompt in enumerate(PROMPTS)]
    rows = Sampler(target, RULES, 9).write(mixed, 0)
    for start, row in list(zip(mixed, rows, strict=True))[::2]:
        assert alone.write([start], 5)[0] == row


def test_a_sampler_is_used_again_and_again(target: Target) -> None:
    sampler, starts = Sampler(target, RULES, 4), [Start(p, len(p), 0.9) for p in PROMPTS[:4]]
    first = sampler.write(starts, 3)
    assert sampler.write(starts, 4) != first
    assert sampler.write(starts[:2], 4)[0] != first[0]
    assert sampler.write(starts, 3) == first == Sampler(target, RULES, 4).write(starts, 3)


# --- laws -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.6, 1.3])
def test_sampled_replies_follow_the_models_law(temperature: float, small: Target) -> None:
    prompt, rows = [BOS, 5], 6000
    expected = {}
    for first, p in enumerate(law(small, prompt, temperature).tolist()):
        if first == END:
            expected[(END,)] = p
            continue
        for second, q in enumerate(law(small, [*prompt, first], temperature).tolist()):
            expected[(first, second)] = p * q
    rules = replace(RULES, length=4, min_p=0.5)  # min_p is of user turns, not of replies
    written = Sampler(small, rules, rows).write([Start(prompt, 2, temperature)] * rows, 0)
    counts = Counter(tuple(row.ids[2:]) for row in written)
    assert set(counts) <= set(expected) and len(counts) > 10
    assert chi_square(counts, expected) < 4


def test_user_turns_leave_out_what_min_p_says(small: Target) -> None:
    prompt, rows = [BOS, 6], 6000
    rules = replace(RULES, length=3, temperature=1.4, min_p=0.2, ends=NEVER, eos=NEVER)
    written = Sampler(small, rules, rows).write([Start(prompt, 3, 0.0)] * rows, 1)
    expected = {(token,): p for token, p in enumerate(law(small, prompt, 1.4, 0.2).tolist()) if p > 0}
    assert 1 < len(expected) < 7
    counts = Counter((row.ids[2],) for row in written)
    assert set(counts) == set(expected)
    assert chi_square(counts, expected) < 4


def test_the_law_changes_where_the_reply_begins(small: Target) -> None:
    """A hot user turn of two tokens, then a greedy reply."""
    rules = replace(RULES, length=8, temperature=2.0, ends=NEVER, eos=NEVER)
    rows = Sampler(small, rules, 300).write([Start([BOS, 5], 4, 0.0)] * 300, 2)
    assert len({tuple(row.ids[:4]) for row in rows}) > 20
    for row in rows[::10]:
        for place in range(4, 8):
            assert row.ids[place] == int(law(small, row.ids[:place], 1.0).argmax())


# --- where turns and rows end -------------------------------------------------------------------------------


def open_rows(target: Target) -> list[Written]:
    """Rows whose user turn the target ends itself, from prompts of two lengths."""
    starts = [Start([BOS, 5] if i % 2 else [BOS, 5, 6, 7, 8], None, 0.0) for i in range(400)]
    return Sampler(target, RULES, 400).write(starts, 0)


def test_a_turn_ends_at_an_end_token_or_its_limit_and_the_tail_follows(target: Target) -> None:
    ends = Counter()
    for i, row in enumerate(open_rows(target)):
        begin = 2 if i % 2 else 5
        turn, tail = row.ids[begin : row.reply - 3], row.ids[row.reply - 3 : row.reply]
        assert tail == RULES.tail
        assert not set(turn) & RULES.ends
        at_limit = begin + len(turn) == RULES.turn_end
        assert at_limit or begin + len(turn) < RULES.turn_end
        ends[at_limit] += 1
    assert min(ends[True], ends[False]) > 10


def test_replies_behind_a_free_turn_are_greedy(target: Target) -> None:
    for row in open_rows(target)[::40]:
        assert row.ids == greedy(target, row.ids[: row.reply], RULES.length)


def test_a_turn_that_ends_by_chance_has_the_models_law(small: Target) -> None:
    """How long the turn gets, against the enumerated law of not ending."""
    rules = Rules(9, 4, [3], frozenset({END, 2}), NEVER, 1.0, 0.0)
    rows = Sampler(small, rules, 5000).write([Start([BOS, 5], None, 0.0)] * 5000, 0)
    expected = {(2,): 0.0, (3,): 0.0, (4,): 0.0}
    for first, p in enumerate(law(small, [BOS, 5], 1.0).tolist()):
        if first in rules.ends:
            expected[(2,)] += p
            continue
        for second, q in enumerate(law(small, [BOS, 5, first], 1.0).tolist()):
            expected[(3,) if second in rules.ends else (4,)] += p * q
    assert chi_square(Counter((row.reply - 1,) for row in rows), expected) < 4


def test_without_end_tokens_rows_reach_the_limit(target: Target) -> None:
    rules = replace(RULES, ends=NEVER, eos=NEVER, length=21)
    rows = Sampler(target, rules, 3).write([Start([BOS], None, 0.5), Start([BOS, 9], 2, 1.0)], 0)
    assert [len(row.ids) for row in rows] == [21, 21]
    assert rows[0].reply == 21 and rows[1].reply == 2  # the turn's limit and the tail leave the first no reply


# --- manners ------------------------------------------------------------------------------------------------


def test_the_attention_of_the_model_is_given_back(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    own = target.model.config._attn_implementation
    sampler = Sampler(target, RULES, 1)
    sampler.write([Start([BOS], 1, 0.0)], 0)
    assert target.model.config._attn_implementation == own == "sdpa"
    monkeypatch.setattr(sampler, "_step", None)
    with pytest.raises(TypeError):
        sampler.write([Start([BOS], 1, 0.0)], 0)
    assert target.model.config._attn_implementation == own


def test_a_model_with_eager_attention_writes_the_same() -> None:
    target = double(tiny_llama())
    starts = [Start(prompt, len(prompt), 0.8) for prompt in PROMPTS]
    rows = Sampler(target, RULES, 5).write(starts, 0)
    target.model.set_attn_implementation("eager")
    assert Sampler(target, RULES, 5).write(starts, 0) == rows
    assert target.model.config._attn_implementation == "eager"


def test_the_callers_random_numbers_are_left_alone(target: Target) -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    Sampler(target, RULES, 2).write([Start([BOS], 1, 0.9)], 0)
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a captured graph needs a GPU")
def test_a_captured_graph_writes_greedy_rows_and_seeded_ones() -> None:
    made = tiny_llama()
    target = Target(made.model.double().cuda(), None, made.name)
    sampler = Sampler(target, RULES, 6)
    for seed in (1, 2):
        rows = sampler.write([Start(p, len(p), 0.0) for p in PROMPTS] + [Start([BOS, 5], None, 0.9)], seed)
        assert [row.ids for row in rows[:5]] == [greedy(target, prompt, RULES.length) for prompt in PROMPTS]
    long = Sampler(target, replace(RULES, length=WIDTH + 12), 5).write([Start(p, len(p), 0.0) for p in PROMPTS], 0)
    assert [row.ids for row in long] == [greedy(target, prompt, WIDTH + 12) for prompt in PROMPTS]
    hot = [Start(p, len(p), 0.9) for p in PROMPTS]
    assert sampler.write(hot, 3) == sampler.write(hot, 3) != sampler.write(hot, 4)
