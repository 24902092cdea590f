"""Whatever is drafted, the text is the target's own: token by token when greedy, and in law when sampled.

Greedy texts are compared with transformers' own generate over every method, budget and prompt length. Laws
are enumerated exactly: the shipped loop runs once for every sequence of draws the target could make.
"""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from toy_models import (
    KINDS,
    TREES,
    Choose,
    cached_model,
    greedy,
    law,
    margin,
    naive_law,
    oracle_drafter,
    plain_logits,
    random_drafter,
    random_for,
    target_of,
    tiny_model,
)

from dominotree_lite import decode
from dominotree_lite.decode import Result, generate
from dominotree_lite.drafter import Drafter
from dominotree_lite.target import Target
from dominotree_lite.tree import DraftTree
from dominotree_lite.verify import Draw, Sampling, Walk

all_methods = pytest.mark.parametrize("method", KINDS)
trees = pytest.mark.parametrize("method", TREES)
MODELS = [("llama", False), ("qwen3", True)]  # the second ties its embeddings
NEW = 14


# --- Greedy ------------------------------------------------------------------------------------------------------


def sweep_case(number: int) -> tuple[Target, list[int], list[int]]:
    """A target, a prompt of 1 to 40 tokens and the text that follows it, nowhere close to another one."""
    model = cached_model(*MODELS[number % 2])
    prompt = np.random.default_rng(number).integers(50, size=number % 40 + 1).tolist()
    wanted = greedy(model, prompt, NEW)
    assert margin(model, prompt, wanted) > 5e-4
    return target_of(model), prompt, wanted


@all_methods
def test_greedy_text_is_that_of_generate_for_every_budget_and_prompt_length(method: str) -> None:
    """The right tokens are drafted, but mostly not first: accepted paths zigzag through the tree."""
    zigzag = accepted = 0
    for budget in range(65):
        target, prompt, wanted = sweep_case(budget)
        kind = KINDS[method]
        drafter = kind and oracle_drafter(
            target, prompt, NEW, kind, shift=bool(budget % 3), block=5, wrong=0.6, seed=budget
        )
        result = generate(prompt, target, drafter, method=method, budget=budget, max_new_tokens=NEW)
        assert result.token_ids == wanted, f"budget {budget}"
        assert all(len(r.tree) <= budget for r in result.rounds) or method not in TREES
        accepted += sum(len(r.accepted) for r in result.rounds)
        zigzag += sum(r.accepted != list(range(1, len(r.accepted) + 1)) for r in result.rounds)
    if method != "ar":
        assert accepted > 100
    if method in TREES:
        assert zigzag > 50


@all_methods
@pytest.mark.parametrize("shift", [False, True], ids=["plain", "shift"])
def test_greedy_text_is_that_of_generate_with_a_drafter_that_knows_nothing(method: str, shift: bool) -> None:
    for budget in (0, 1, 2, 3, 5, 8, 13, 33, 64, 500):
        target, prompt, wanted = sweep_case(budget)
        drafter = random_for(method, target, shift=shift, block=4, seed=budget)
        result = generate(prompt, target, drafter, method=method, budget=budget, max_new_tokens=NEW)
        assert result.token_ids == wanted, f"budget {budget}"


@trees
@pytest.mark.parametrize("candidates", [1, 2, 50, 51, 512, None])
def test_candidates_and_child_cap_change_no_token(method: str, candidates: int | None) -> None:
    target, prompt, wanted = sweep_case(7)
    drafter = oracle_drafter(target, prompt, NEW, KINDS[method] or "", True, wrong=0.6)
    for child_cap in (None, 1, 2, 50, 99):
        result = generate(
            prompt,
            target,
            drafter,
            method=method,
            budget=30,
            candidates=candidates,
            child_cap=child_cap,
            max_new_tokens=NEW,
        )
        assert result.token_ids == wanted
        assert most_children(result) <= min(child_cap or 30, 50)


def most_children(result: Result) -> int:
    return max(len(r.tree.children(node)) for r in result.rounds for node in range(len(r.tree) + 1))


@trees
@pytest.mark.parametrize("budget", [38, 39, 40, 1000])
def test_the_whole_tree_is_drafted_and_no_more(method: str, budget: int) -> None:
    target = target_of(tiny_model(vocabulary=3))
    drafter = random_for(method, target, block=4)
    result = generate([1], target, drafter, method=method, budget=budget, max_new_tokens=13)
    assert result.token_ids == greedy(target.model, [1], 13)
    assert len(result.rounds[0].tree) == min(budget, 3 + 9 + 27)
    assert result.tau == 4 or budget == 38  # whatever the target says was drafted


@all_methods
def test_the_smallest_vocabulary_and_the_shortest_block_work(method: str) -> None:
    one, two = target_of(tiny_model(vocabulary=1)), target_of(tiny_model(vocabulary=2))
    for target, block in ((one, 6), (one, 2), (two, 2)):
        for budget in (0, 1, 2, 3, 64):
            drafter = random_for(method, target, block=block, mask=0)
            result = generate([0], target, drafter, method=method, budget=budget, max_new_tokens=13)
            assert result.token_ids == greedy(target.model, [0], 13)
            if target is one and method != "ar" and (budget or method not in TREES):
                assert result.tau > 1  # there is nothing to get wrong


@pytest.mark.parametrize("method", [name for name in KINDS if name != "ar"])
def test_in_half_precision_a_text_only_leaves_plain_decoding_at_a_near_tie(method: str) -> None:
    target = target_of(tiny_model("qwen3", dtype=torch.bfloat16))
    for start in range(3):
        prompt = [start, 7]
        plain = generate(prompt, target, method="ar", max_new_tokens=30).token_ids
        drafter = random_for(method, target)
        text = generate(prompt, target, drafter, method=method, budget=20, max_new_tokens=30).token_ids
        split = next((i for i in range(30) if plain[i] != text[i]), None)
        if split is not None:
            row = plain_logits(target.model, [*prompt, *plain[:split]])[-1].float()
            ours, theirs = row[text[split]], row[plain[split]]
            assert abs(ours - theirs) <= 4 * 2**-8 * abs(theirs)


# --- Width one ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tree", "line"), [("ddtree", "dflash"), ("dominotree", "domino"), ("greedypath", "domino")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("oracle", [True, False], ids=["oracle", "random"])
def test_a_tree_of_width_one_is_the_chain(tree: str, line: str, temperature: float, oracle: bool) -> None:
    target, prompt, _ = sweep_case(9)
    kind = KINDS[tree] or ""
    if oracle and not temperature:
        drafter = oracle_drafter(target, prompt, NEW, kind, True, wrong=0.5)
    else:
        drafter = random_drafter(target, kind, True, seed=1)

    def run(method: str, **options: Any) -> Result:
        return generate(
            prompt, target, drafter, method=method, temperature=temperature, seed=3, max_new_tokens=NEW, **options
        )

    narrow, chain = run(tree, child_cap=1, candidates=None, budget=64), run(line)
    assert narrow.token_ids == chain.token_ids
    assert narrow.tau == chain.tau
    for one, other in zip(narrow.rounds, chain.rounds, strict=True):
        assert one.tree.tokens.tolist() == other.tree.tokens.tolist()
        assert one.tree.parents.tolist() == other.tree.parents.tolist() == list(range(-1, len(other.tree)))
        np.testing.assert_allclose(one.tree.log_probs, other.tree.log_probs, rtol=0, atol=1e-5)
        assert one.accepted == other.accepted


def test_a_narrow_tree_of_the_uncorrected_base_is_the_chain_of_a_dflash_drafter_of_the_same_weights() -> None:
    target, prompt, _ = sweep_case(4)
    base = random_drafter(target, "dflash", True, seed=1)
    domino = random_drafter(target, "domino", True, seed=1)
    domino.model.load_state_dict(base.model.state_dict(), strict=False)
    chain = generate(prompt, target, base, method="dflash", max_new_tokens=NEW)
    narrow = generate(prompt, target, domino, method="marginal", child_cap=1, max_new_tokens=NEW)
    wide = generate(prompt, target, domino, method="marginal", budget=9, max_new_tokens=NEW)
    same = generate(prompt, target, base, method="ddtree", budget=9, max_new_tokens=NEW)
    for ours, theirs in ((narrow, chain), (wide, same)):
        assert [r.tree.to_json() for r in ours.rounds] == [r.tree.to_json() for r in theirs.rounds]


# --- The law at temperatures above 0 -----------------------------------------------------------------------------

SAMPLINGS = [(1.0, 0, 1.0), (0.6, 2, 1.0), (1.5, 0, 0.75)]
COUNT = 4  # the token of prefill, then a tree of depth 2 at first: both its tokens and the bonus


@pytest.fixture(scope="module")
def three() -> Target:
    return target_of(tiny_model("qwen3", vocabulary=3, dtype=torch.float64, seed=4))


def target_law(target: Target, prompt: list[int], sampling: Sampling) -> dict[tuple[int, ...], float]:
    """The probability of every text of COUNT tokens, by plain passes and a softmax written out."""
    wanted = {}
    for text in product(range(3), repeat=COUNT):
        rows = plain_logits(target.model, [*prompt, *text])[len(prompt) - 1 : -1].tolist()
        laws = [naive_law(row, sampling.temperature, sampling.top_k, sampling.top_p) for row in rows]
        wanted[text] = float(np.prod([row[token] for row, token in zip(laws, text, strict=True)]))
    return {text: p for text, p in wanted.items() if p > 0}


class Loop:
    """The shipped loop with the target's draws taken from `choose`, and a place for another verifier."""

    def __init__(self, target: Target, drafter: Drafter | None, method: str, sampling: Sampling) -> None:
        self.target, self.drafter = target, drafter
        self.settings = decode.Settings(method, budget=7, sampling=sampling, max_new_tokens=COUNT)
        self.accepted: set[int] = set()  # accepted lengths seen
        self.rows: list[list[float]] = []  # of the last verified tree

    def law(self, monkeypatch: pytest.MonkeyPatch, walk: Callable[..., Walk] | None = None) -> dict[Any, float]:
        return law(lambda choose: self.run(choose, monkeypatch, walk))

    def run(self, choose: Choose, monkeypatch: pytest.MonkeyPatch, walk: Callable[..., Walk] | None) -> tuple[int, ...]:
        def draws(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> Draw:
            self.rows = sampling.probabilities(logits).tolist()
            return lambda node: choose(self.rows[node])

        with monkeypatch.context() as patch:
            patch.setattr(decode, "target_draws", draws)
            if walk is not None:
                patch.setattr(decode, "walk", lambda tree, draw: walk(tree, draw, self.rows, choose))
            result = decode.decode([2, 0], self.target, self.drafter, self.settings)
        self.accepted |= {len(round_.accepted) for round_ in result.rounds}
        return tuple(result.token_ids)


def by_ratio(tree: DraftTree, draw: Draw, rows: Sequence[Sequence[float]], choose: Choose) -> Walk:
    """A wrong verifier: it accepts the best child with p/q, as if the drafter had sampled it from q."""
    nodes, node = list[int](), 0
    while children := tree.children(node):
        child, p = children[0], rows[node]
        token = int(tree.tokens[child])
        accept = min(1.0, p[token] / float(np.exp(tree.log_probs[child] - tree.log_probs[node])))
        if choose([accept, 1 - accept]):
            rest = [0.0 if i == token else mass for i, mass in enumerate(p)]
            return Walk(nodes, choose([mass / sum(rest) for mass in rest]))
        nodes.append(child)
        node = child
    return Walk(nodes, draw(node))


@all_methods
@pytest.mark.parametrize(("temperature", "top_k", "top_p"), SAMPLINGS)
def test_the_law_of_a_text_is_the_targets(
    method: str, temperature: float, top_k: int, top_p: float, three: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = Sampling(temperature, top_k, top_p)
    loop = Loop(three, random_for(method, three, shift=True, block=4, seed=2), method, sampling)
    got, wanted = loop.law(monkeypatch), target_law(three, [2, 0], sampling)
    assert got == pytest.approx(wanted, abs=1e-12)
    assert sum(got.values()) == pytest.approx(1, abs=1e-12)
    assert loop.accepted == ({0} if method == "ar" else {0, 1, 2})


@pytest.mark.parametrize("method", [name for name in KINDS if name != "ar"])
def test_the_same_check_finds_a_verifier_that_accepts_by_p_over_q(
    method: str, three: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = Sampling(1.0)
    loop = Loop(three, random_for(method, three, shift=True, block=4, seed=2), method, sampling)
    got, wanted = loop.law(monkeypatch, by_ratio), target_law(three, [2, 0], sampling)
    assert sum(got.values()) == pytest.approx(1, abs=1e-12)
    assert max(abs(got.get(text, 0.0) - p) for text, p in wanted.items()) > 1e-2
