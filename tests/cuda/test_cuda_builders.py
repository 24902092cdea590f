"""The builders of fixed shape against the core's heap, on hundreds of random rounds."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from gpu import devices
from test_build import LawScorer, brute_force, quarters
from torch import Tensor
from toy_head import Round, random_round

from dominotree_lite.build import heap
from dominotree_lite.cuda.builders import FrontierGraph, HeapGraph
from dominotree_lite.cuda.sweep import ScorerLanes, sweep, tree_of
from dominotree_lite.drafter import Draft
from dominotree_lite.scoring import ConditionalScorer, GreedyPathScorer, MarginalScorer, Scorer
from dominotree_lite.tree import DraftTree

ScorerOf = Callable[[Draft, int | Tensor], Scorer]


def on(given: Round, device: str) -> Draft:
    given.head.to(device)
    return Draft(given.hidden.to(device), given.base_logits.to(device))


def conditional(given: Round, cap: int, candidates: int | None) -> ScorerOf:
    return lambda draft, anchor: ConditionalScorer(given.head, draft.hidden, draft.base_logits, anchor, cap, candidates)


def greedy_path(given: Round, cap: int, candidates: int | None) -> ScorerOf:
    return lambda draft, anchor: GreedyPathScorer(given.head, draft.hidden, draft.base_logits, anchor, cap, candidates)


def marginal(cap: int) -> ScorerOf:
    return lambda draft, anchor: MarginalScorer(draft.base_logits, cap)


def rounds(count: int, seed: int) -> list[tuple[Round, int, int, int | None]]:
    """Rounds of all sizes, each with a budget, a child cap and a number of candidates."""
    chance, made = np.random.default_rng(seed), []
    for number in range(count):
        vocabulary, depths = int(chance.integers(2, 40)), int(chance.integers(1, 7))
        given = random_round(vocabulary, depths, seed=seed + number, uncorrected=int(chance.integers(0, 3)))
        budget = int(chance.integers(1, 40))
        candidates = [None, 1, 3, vocabulary - 1, vocabulary, 512][number % 6]
        made.append((given, budget, int(chance.integers(1, 12)) if number % 2 else budget, candidates))
    return made


def assert_same(tree: DraftTree, other: DraftTree) -> None:
    assert tree.to_json() == other.to_json()


def assert_close(tree: DraftTree, other: DraftTree) -> None:
    """The same nodes; scores up to float64 rounding, since a batch of lanes is multiplied in another order."""
    for name in ("tokens", "parents", "depths"):
        assert getattr(tree, name).tolist() == getattr(other, name).tolist()
    assert tree.log_probs == pytest.approx(other.log_probs, rel=0, abs=1e-11)


# --- One replay a node -------------------------------------------------------------------------------------------


@devices
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_heap_by_replays_is_the_heap_to_the_last_bit(device: str, dtype: torch.dtype) -> None:
    for given, budget, cap, candidates in rounds(60, seed=1):
        draft, scorer_of = on(given.to(dtype), device), conditional(given, cap, candidates)
        built = HeapGraph(scorer_of, draft, budget).build(draft, given.anchor)
        assert_same(built, heap(scorer_of(draft, given.anchor), given.anchor, budget))


@devices
def test_a_heap_graph_serves_one_round_after_another_and_smaller_budgets(device: str) -> None:
    given, *others = [random_round(20, 4, seed=s) for s in range(6)]
    scorer_of = conditional(given, 8, 12)  # one head, many drafts
    graph = HeapGraph(scorer_of, on(given, device), 25)
    for other, budget in itertools.product(others, (25, 1, 7, 0)):
        draft = on(other, device)
        assert_same(
            graph.build(draft, other.anchor, budget), heap(scorer_of(draft, other.anchor), other.anchor, budget)
        )


# --- One replay a tree -------------------------------------------------------------------------------------------


@devices
def test_a_sweep_is_the_heap_on_random_rounds(device: str) -> None:
    for given, budget, cap, candidates in rounds(240, seed=1000):
        draft, scorer_of = on(given, device), conditional(given, cap, candidates)
        graph = FrontierGraph.of_scorer(scorer_of, draft, budget)
        for anchor in (given.anchor, 0):
            assert_close(graph.build(draft, anchor), heap(scorer_of(draft, anchor), anchor, budget))


@devices
@pytest.mark.parametrize("kind", ["marginal", "greedy path"])
def test_other_scorers_are_swept_as_well(device: str, kind: str) -> None:
    for given, budget, cap, candidates in rounds(40, seed=2000):
        draft = on(given, device)
        scorer_of = marginal(cap) if kind == "marginal" else greedy_path(given, cap, candidates)
        built = FrontierGraph.of_scorer(scorer_of, draft, budget).build(draft, given.anchor)
        assert_close(built, heap(scorer_of(draft, given.anchor), given.anchor, budget))


@pytest.mark.parametrize("impossible", [0.0, 0.3])
def test_equal_scores_and_impossible_tokens_are_ordered_as_by_brute_force(impossible: float) -> None:
    """Scores are sums of quarters, so ties are everywhere and exact."""
    for seed in range(60):
        vocabulary, horizon, children, budget = 2 + seed % 4, 1 + seed % 4, 1 + seed % 3, 1 + seed % 40
        law = quarters(seed, vocabulary, min(children, vocabulary), impossible)
        nodes = brute_force(law, horizon)[:budget]
        swept = sweep(ScorerLanes(LawScorer(law, horizon)), torch.tensor([3]), budget)
        tree = tree_of(swept.packed())
        assert [tuple(tree.path_tokens(n)) for n in range(1, len(tree) + 1)] == [node.tokens for node in nodes]
        assert tree.log_probs[1:].tolist() == [node.score for node in nodes]
        count = len(tree) + 1
        assert (swept.visible()[:count, :count].numpy() == tree.ancestors()).all()
        assert not swept.visible()[:count, count:].any()
