"""Tapes: trees from a tape are its scorer's, whether recorded, stored and read back, or made by hand."""

import itertools
import json
import math

import pytest
from toy_head import random_round

from dominotree_lite.build import frontier, heap
from dominotree_lite.errors import InputError
from dominotree_lite.scoring import ConditionalScorer
from dominotree_lite.tape import Tape


def scorer(seed: int) -> ConditionalScorer:
    made = random_round(12, 5, seed)
    return ConditionalScorer(made.head, made.hidden, made.base_logits, made.anchor, child_cap=6, candidates=8)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("budget", [0, 1, 9, 30])
def test_a_tape_gives_its_scorers_trees(seed: int, budget: int) -> None:
    wanted = heap(scorer(seed), 3, budget).to_json()
    scores = wanted.pop("log_probs")
    tape = Tape.over(scorer(seed))
    frontier(tape, 3, budget)
    heap(tape, 3, budget)
    played = Tape.from_json(json.loads(json.dumps(tape.to_json())))
    for builder in (heap, frontier):
        for each in (tape, played):
            found = builder(each, 3, budget).to_json()
            assert found.pop("log_probs") == pytest.approx(scores, abs=1e-5)
            assert found == wanted


def test_by_hand_it_is_brute_force_over_the_table() -> None:
    law = {(): {1: 0.6, 2: 0.4}, (1,): {1: 0.9, 2: 0.1}, (2,): {3: 0.5}}
    tape = Tape.by_hand(law)
    products = {(1,): 0.6, (2,): 0.4, (1, 1): 0.54, (1, 2): 0.06, (2, 3): 0.2}
    ranked = sorted(products, key=lambda path: -products[path])
    for builder, budget in itertools.product((heap, frontier), range(7)):
        tree = builder(tape, 0, budget)
        assert [tuple(tree.path_tokens(n)) for n in range(1, len(tree) + 1)] == ranked[:budget]
        assert tree.expected_accepted() == pytest.approx(math.fsum(products[path] for path in ranked[:budget]))


def test_what_is_not_on_it_is_named() -> None:
    with pytest.raises(InputError, match=r"path \[2\]"):
        heap(Tape.by_hand({(): {1: 0.6, 2: 0.4}, (1,): {1: 0.5}}), 0, 5)
    with pytest.raises(InputError, match="root"):
        Tape.by_hand({(1,): {2: 1.0}})
