"""Replays against `decode` on a tiny real target, and scores against products of naive laws."""

import math

import numpy as np
import pytest
from toy_head import naive_children, naive_logits, random_round
from toy_models import cached_model, greedy, oracle_drafter, target_of

from dominotree_lite.build import heap
from dominotree_lite.decode import generate
from dominotree_lite.errors import InputError
from dominotree_lite.replay import Place, Rounds, follow, places, replay, rescored, rounds_of
from dominotree_lite.scoring import ConditionalScorer, GreedyPathScorer, MarginalScorer
from dominotree_lite.tree import DraftTree

PROMPT, LENGTH, BUDGET, CANDIDATES = [5, 9, 11, 3], 24, 10, 20


@pytest.mark.parametrize("wrong", [0.0, 0.5])
def test_it_counts_the_rounds_that_decode_takes(wrong: float) -> None:
    target = target_of(cached_model())
    drafter = oracle_drafter(target, PROMPT, LENGTH + 8, "domino", wrong=wrong)
    head = drafter.head
    assert head is not None
    scorers = {
        "marginal": lambda d, anchor: MarginalScorer(d.base_logits, BUDGET),
        "greedypath": lambda d, a: GreedyPathScorer(head, d.hidden, d.base_logits, a, BUDGET, CANDIDATES),
        "dominotree": lambda d, a: ConditionalScorer(head, d.hidden, d.base_logits, a, BUDGET, CANDIDATES),
    }
    text = greedy(target.model, PROMPT, LENGTH)
    found = replay(PROMPT, text, target, drafter, scorers, BUDGET)
    counts = set()
    for name, budget in [(name, budget) for name in scorers for budget in (0, 1, 4, BUDGET)]:
        options = {"budget": budget, "candidates": CANDIDATES, "max_new_tokens": LENGTH}
        result = generate(PROMPT, target, drafter, method=name, **options)
        assert result.token_ids == text
        played = rounds_of(found[name], budget)
        assert played == Rounds(len(result.rounds), len(text) - 1)
        assert played.tau == pytest.approx(result.tau)
        counts.add(played.rounds)
    assert len(counts) > 2


def test_a_place_holds_the_tree_that_decode_verifies_there_and_what_it_accepts() -> None:
    target = target_of(cached_model())
    drafter = oracle_drafter(target, PROMPT, LENGTH + 8, "domino", wrong=0.5)
    head = drafter.head
    assert head is not None
    scorers = {
        "dominotree": lambda d, a: ConditionalScorer(head, d.hidden, d.base_logits, a, BUDGET, CANDIDATES),
        "marginal": lambda d, anchor: MarginalScorer(d.base_logits, BUDGET),
    }
    text = greedy(target.model, PROMPT, LENGTH)
    found = places(PROMPT, text, target, drafter, scorers, BUDGET)
    for name in scorers:
        options = {"budget": BUDGET, "candidates": CANDIDATES, "max_new_tokens": LENGTH}
        rounds = generate(PROMPT, target, drafter, method=name, **options).rounds
        assert len(rounds) > 3 and any(one.accepted for one in rounds)
        for one in rounds:
            place = found[name][one.start - len(PROMPT)]
            assert place.tree.tokens.tolist() == one.tree.tokens.tolist()
            assert place.accepted == one.accepted
            np.testing.assert_allclose(place.tree.log_probs, one.tree.log_probs, atol=1e-4)
    assert replay(PROMPT, text, target, drafter, scorers, BUDGET) == {
        name: [place.accepted for place in each] for name, each in found.items()
    }
    few = places(PROMPT, text, target, drafter, scorers, BUDGET, every=5)
    for name, each in few.items():
        assert [p.tree.to_json() for p in each] == [p.tree.to_json() for p in found[name][::5]]


def test_the_prefix_of_a_place_is_the_place_of_a_smaller_budget() -> None:
    target = target_of(cached_model())
    drafter = oracle_drafter(target, PROMPT, LENGTH + 8, "domino", wrong=0.5)
    scorers = {"marginal": lambda d, anchor: MarginalScorer(d.base_logits, BUDGET)}
    text = greedy(target.model, PROMPT, LENGTH)
    large, small = (places(PROMPT, text, target, drafter, scorers, b)["marginal"] for b in (BUDGET, 3))
    for one, other in zip(large, small, strict=True):
        cut = one.prefix(3)
        assert (cut.tree.to_json(), cut.accepted) == (other.tree.to_json(), other.accepted)
    assert any(place.accepted and place.accepted[-1] > 3 for place in large)
    assert Place(DraftTree.root_only(1), []).prefix(0).accepted == []


def test_a_path_is_followed_as_far_as_the_tree_goes() -> None:
    tree = DraftTree.from_lists([7, 1, 2, 1, 3], [-1, 0, 0, 1, 3], [0, 1, 1, 2, 3], [0.0, -0.1, -0.2, -0.3, -0.4])
    assert follow(tree, [1, 1, 3, 5]) == [1, 3, 4]
    assert follow(tree, [2, 1]) == [2]
    assert follow(tree, [9]) == follow(tree, []) == []


def test_no_rounds_and_no_prompt() -> None:
    assert rounds_of([], 5) == Rounds(0, 0)
    assert Rounds(0, 0).tau == 0.0
    target = target_of(cached_model())
    drafter = oracle_drafter(target, PROMPT, 8, "domino")
    with pytest.raises(InputError, match="empty"):
        replay([], [1, 2], target, drafter, {}, 4)
    with pytest.raises(InputError, match="every 0"):
        places(PROMPT, [1, 2], target, drafter, {}, 4, every=0)


@pytest.mark.parametrize("seed", range(4))
def test_the_same_nodes_by_another_scorer_are_products_of_its_law(seed: int) -> None:
    made = random_round(12, 4, seed)
    tree = heap(MarginalScorer(made.base_logits, 12), made.anchor, 30)
    scorer = ConditionalScorer(made.head, made.hidden, made.base_logits, made.anchor, 8, 8)
    scores = rescored(tree, scorer)
    for node in range(1, len(tree) + 1):
        tokens, wanted = tree.path_tokens(node), 0.0
        for depth, token in enumerate(tokens):
            base = made.base_logits[depth].tolist()
            law = dict(naive_children(base, naive_logits(made, tuple(tokens[:depth])), 8, 8))
            wanted += law.get(token, -math.inf)
        assert scores[node] == pytest.approx(wanted)
    assert np.isinf(scores).any()
    own = heap(scorer, made.anchor, 30)
    np.testing.assert_allclose(rescored(own, scorer), own.log_probs)
