"""Drafts drawn by chance: the text's law, enumerated over every draw of drafter and target, is the target's own."""

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from toy_head import random_round
from toy_models import byte_tokenizer, law, naive_law, plain_logits, random_drafter, target_of, tiny_model

from dominotree_lite import speculative
from dominotree_lite.build import chain, frontier, heap
from dominotree_lite.decode import Settings, decode
from dominotree_lite.drafter import Draft, Drafter
from dominotree_lite.errors import InputError
from dominotree_lite.law import Choose
from dominotree_lite.scoring import ConditionalScorer, MarginalScorer
from dominotree_lite.speculative import (
    Drafted,
    DrawnScorer,
    decode_drawn,
    dice,
    drawn_chain,
    judge_by_match,
    judge_by_ratio,
)
from dominotree_lite.tape import Tape
from dominotree_lite.target import Target
from dominotree_lite.tree import DraftTree
from dominotree_lite.verify import Draw, Sampling, walk

WARM = Sampling(temperature=1.0)
TARGET_LAWS = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.0, 0.9], [0.25, 0.25, 0.5]], dtype=torch.float64)
DRAFT_LAW = {
    (): {0: 0.2, 1: 0.7, 2: 0.1},
    **{(a,): {0: 0.6, 1: 0.3, 2: 0.1} if a else {1: 0.8, 2: 0.2} for a in range(3)},
}


def text_law(judge: Any) -> dict[tuple[int, ...], float]:
    """The law of three tokens by a drawn chain of two and its judgement; what a round lacks the target draws.

    The target's law after a path is that of the path's length, so any prefix's is known.
    """

    def program(choose: Choose) -> tuple[int, ...]:
        drafted = drawn_chain(Tape.by_hand(DRAFT_LAW), 0, 3, choose)
        found = walk(drafted.tree, judge(TARGET_LAWS.log(), drafted, WARM, choose)).tokens(drafted.tree)
        return (*found, *(choose(TARGET_LAWS[depth]) for depth in range(len(found), 3)))

    return law(program)


def accept_as_if_matched(logits: torch.Tensor, drafted: Drafted, sampling: Sampling, choose: Choose) -> Draw:
    """A wrong rule: the drafted token with the target's probability, else a draw from the whole of its law."""

    def draw(node: int) -> int:
        p = sampling.probabilities(logits[node])
        if node == len(drafted.tree) or choose(
            [p[drafted.tree.tokens[node + 1]], 1 - p[drafted.tree.tokens[node + 1]]]
        ):
            return choose(p)
        return int(drafted.tree.tokens[node + 1])

    return draw


@pytest.mark.parametrize(
    ("judge", "right"), [(judge_by_ratio, True), (judge_by_match, True), (accept_as_if_matched, False)]
)
def test_the_law_of_a_drawn_chain_is_the_targets_by_either_rule(judge: Any, right: bool) -> None:
    wanted = {t: float(np.prod([TARGET_LAWS[i, x] for i, x in enumerate(t)])) for t in product(range(3), repeat=3)}
    found = text_law(judge)
    assert (max(abs(found.get(text, 0.0) - p) for text, p in wanted.items()) < 1e-12) == right
    assert sum(found.values()) == pytest.approx(1)


def accepted(judge: Any, choose: Choose) -> int:
    drafted = drawn_chain(Tape.by_hand({(): DRAFT_LAW[()]}), 0, 3, choose)
    return len(walk(drafted.tree, judge(TARGET_LAWS.log(), drafted, WARM, choose)).nodes)


def test_the_ratio_accepts_the_overlap_of_both_laws_and_the_match_less() -> None:
    p, q = TARGET_LAWS[0].tolist(), list(DRAFT_LAW[()].values())
    by_ratio, by_match = (law(partial(accepted, judge)) for judge in (judge_by_ratio, judge_by_match))
    assert by_ratio[1] == pytest.approx(sum(map(min, p, q)))
    assert by_match[1] == pytest.approx(np.dot(p, q))


def test_a_drawn_chain_has_the_scorers_law_and_its_scores() -> None:
    given = random_round(4, 3, seed=5)
    scorer = ConditionalScorer(given.head, given.hidden, given.base_logits, given.anchor, 4)

    def program(choose: Choose) -> tuple[tuple[int, ...], float]:
        tree = drawn_chain(scorer, given.anchor, 4, choose).tree
        return tuple(tree.tokens[1:].tolist()), round(float(tree.log_probs[-1]), 9)

    whole = heap(ConditionalScorer(given.head, given.hidden, given.base_logits, given.anchor, 4), given.anchor, 200)
    leaves = [n for n in range(1, len(whole) + 1) if whole.depths[n] == 3]
    wanted = {tuple(whole.path_tokens(n)): float(whole.log_probs[n]) for n in leaves}
    found = law(program)
    assert len(found) == len(wanted) == 64
    for (path, score), probability in found.items():
        assert score == pytest.approx(wanted[path]) and probability == pytest.approx(np.exp(wanted[path]))


# --- Children drawn -------------------------------------------------------------------------------------------


def test_children_are_drawn_without_replacement_and_come_best_first() -> None:
    """The law of the set of two of three, from the definition: one after the other."""
    p = np.array([0.6, 0.3, 0.1])
    inner = MarginalScorer(torch.tensor(p).log()[None], 3)
    drawn = DrawnScorer(inner, 2, torch.Generator().manual_seed(1))
    counted: dict[tuple[int, ...], int] = {}
    lanes = 20_000
    children = drawn.children(1, drawn.root().expand(lanes, -1))
    for pair in children.tokens.tolist():
        counted[tuple(pair)] = counted.get(tuple(pair), 0) + 1
    assert (children.log_probs.exp() - torch.tensor(p)[children.tokens]).abs().max() < 1e-6
    for a, b in ((0, 1), (0, 2), (1, 2)):
        wanted = p[a] * p[b] / (1 - p[a]) + p[b] * p[a] / (1 - p[b])
        assert counted[a, b] / lanes == pytest.approx(wanted, abs=5 * (0.25 / lanes) ** 0.5)
    assert sum(counted.values()) == counted[0, 1] + counted[0, 2] + counted[1, 2]


def test_with_all_children_drawn_the_tree_is_the_best_one() -> None:
    given = random_round(4, 3, seed=2)
    inner = ConditionalScorer(given.head, given.hidden, given.base_logits, given.anchor, 4)
    drawn = DrawnScorer(inner, 9, torch.Generator().manual_seed(0))
    assert frontier(drawn, given.anchor, 12).to_json() == frontier(inner, given.anchor, 12).to_json()


# --- The loop -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def target() -> Target:
    return target_of(tiny_model("llama", 258, seed=1), eos=1, tokenizer=byte_tokenizer(chat=True))


@pytest.fixture(scope="module")
def drafter(target: Target) -> Drafter:
    return random_drafter(target, "domino")


def best_chain(drafter: Drafter, draft: Draft, anchor: int, generator: torch.Generator) -> Drafted:
    return Drafted(chain(ConditionalScorer(drafter.head, draft.hidden, draft.base_logits, anchor, 1), anchor))


def own_chain(drafter: Drafter, draft: Draft, anchor: int, generator: torch.Generator) -> Drafted:
    size = draft.base_logits.shape[1]
    scorer = ConditionalScorer(drafter.head, draft.hidden, draft.base_logits, anchor, size)
    return drawn_chain(scorer, anchor, size, dice(generator))


@pytest.mark.parametrize("grow", [best_chain, own_chain])
def test_a_temperature_near_zero_gives_the_greedy_text(grow: Any, target: Target, drafter: Drafter) -> None:
    turns = ("Good morning to you.", "And then?")
    wanted = decode(turns, target, None, Settings(method="ar", max_new_tokens=9)).token_ids
    settings = Settings(sampling=Sampling(temperature=2e-5), max_new_tokens=9)
    found = decode_drawn(turns, target, drafter, settings, partial(grow, drafter), judge_by_match)
    assert found.token_ids == wanted
    assert found.tokens == len(wanted) - 2 and 0 < found.rounds <= found.tokens and found.seconds > 0


@pytest.mark.parametrize("most", [0, 1, 2, 5])
def test_it_stops_at_the_length_and_behind_the_end(most: int, target: Target, drafter: Drafter) -> None:
    settings = Settings(sampling=WARM, max_new_tokens=most)
    found = decode_drawn(["Hi"], target, drafter, settings, partial(own_chain, drafter), judge_by_ratio)
    assert len(found.token_ids) == most
    assert speculative._until_the_end([5, 1, 7], target) == [5, 1]


def chain_drawn(drafter: Drafter, draft: Draft, anchor: int, generator: torch.Generator) -> Drafted:
    scorer = ConditionalScorer(drafter.head, draft.hidden, draft.base_logits, anchor, 4)
    return drawn_chain(scorer, anchor, 4, speculative.dice(generator))


def tree_drawn(drafter: Drafter, draft: Draft, anchor: int, generator: torch.Generator) -> Drafted:
    scorer = ConditionalScorer(drafter.head, draft.hidden, draft.base_logits, anchor, 4)
    return Drafted(frontier(DrawnScorer(scorer, 2, generator), anchor, 4))


@pytest.mark.parametrize(
    ("grow", "judge"),
    [(chain_drawn, judge_by_ratio), (chain_drawn, judge_by_match), (tree_drawn, judge_by_match)],
    ids=["chain by ratio", "chain by match", "tree by match"],
)
def test_the_loops_law_is_the_targets_over_several_rounds(
    grow: Any, judge: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three tokens of a model of four, against plain logits: every draw of the target and of a chain enumerated.

    A tree's own draws are those of the seed: the law must be the target's for each of them.
    """
    tiny = target_of(tiny_model("llama", 4, dtype=torch.float64, seed=3))
    monkeypatch.setattr(tiny, "encode", lambda messages: [3, 0], raising=False)
    monkeypatch.setattr(tiny, "decode", lambda tokens: "", raising=False)
    drafter, sampling = random_drafter(tiny, "domino", block=3, mask=1), Sampling(temperature=0.8)
    wanted = {text: _plain(tiny, [3, 0], text) for text in product(range(4), repeat=3)}
    for seed in range(3 if grow is tree_drawn else 1):
        settings = Settings(sampling=sampling, max_new_tokens=3, seed=seed)

        def program(choose: Choose, settings: Settings = settings) -> tuple[int, ...]:
            monkeypatch.setattr(speculative, "dice", lambda generator: choose)
            return tuple(decode_drawn(["x"], tiny, drafter, settings, partial(grow, drafter), judge).token_ids)

        found = law(program)
        assert found.keys() <= wanted.keys()
        assert max(abs(found.get(text, 0.0) - p) for text, p in wanted.items()) < 1e-9


def _plain(target: Target, prompt: Sequence[int], text: Sequence[int]) -> float:
    rows = plain_logits(target.model, [*prompt, *text])[len(prompt) - 1 : -1].tolist()
    return float(np.prod([naive_law(row, 0.8, 0, 1.0)[token] for row, token in zip(rows, text, strict=True)]))


def test_what_makes_no_sense_is_refused(target: Target, drafter: Drafter) -> None:
    with pytest.raises(InputError, match="temperature above 0"):
        decode_drawn(["Hi"], target, drafter, Settings(), partial(own_chain, drafter), judge_by_ratio)
    best = Drafted(DraftTree.from_lists([0, 1], [-1, 0], [0, 1], [0.0, -1.0]))
    with pytest.raises(InputError, match="judge it by match"):
        judge_by_ratio(TARGET_LAWS.log(), best, WARM, dice(torch.Generator()))
