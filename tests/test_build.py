"""Both builders against brute force over all paths, and against each other.

`LawScorer` gives every path its own children from a seeded law of quarters: sums are exact and equal scores
are common, so trees must agree to the last bit. Trees of the shipped scorers are checked against `toy_head`.
"""

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from toy_head import Round, naive_children, naive_logits, random_round

from dominotree_lite.build import chain, frontier, heap, heap_events, waiting_after
from dominotree_lite.errors import InputError
from dominotree_lite.scoring import Children, ConditionalScorer, GreedyPathScorer, MarginalScorer, Scorer
from dominotree_lite.tree import DraftTree

Path = tuple[int, ...]
Law = Callable[[Path], list[tuple[int, float]]]
Builder = Callable[[Scorer, int, int], DraftTree]
both_builders = pytest.mark.parametrize("builder", [heap, frontier])


@dataclass(frozen=True)
class Node:
    score: float
    ranks: Path
    tokens: Path


def brute_force(law: Law, horizon: int) -> list[Node]:
    """Every path there is, in the order in which nodes enter the tree."""
    nodes, layer = [], [Node(0.0, (), ())]
    for _ in range(horizon):
        layer = [
            Node(node.score + log_prob, (*node.ranks, rank), (*node.tokens, token))
            for node in layer
            for rank, (token, log_prob) in enumerate(law(node.tokens))
            if log_prob > -math.inf
        ]
        nodes += layer
    return sorted(nodes, key=lambda node: (-node.score, len(node.ranks), node.ranks))


def paths(tree: DraftTree) -> list[Path]:
    return [tuple(tree.path_tokens(node)) for node in range(1, len(tree) + 1)]


def assert_same(tree: DraftTree, other: DraftTree) -> None:
    assert tree.to_json() == other.to_json()


def assert_is(tree: DraftTree, nodes: list[Node], tolerance: float = 0.0) -> None:
    assert paths(tree) == [node.tokens for node in nodes]
    assert tree.log_probs[1:].tolist() == pytest.approx([node.score for node in nodes], rel=0, abs=tolerance)


@dataclass
class LawScorer:
    """A scorer whose state is the path itself, so that any law of the path can be scored."""

    law: Law
    horizon: int
    calls: int = 0

    def root(self) -> Tensor:
        return torch.full((1, self.horizon), -1.0)

    def children(self, depth: int, states: Tensor) -> Children:
        self.calls += 1
        rows = [self.law(tuple(int(token) for token in state[: depth - 1])) for state in states]
        tokens = [[token for token, _ in row] for row in rows]
        log_probs = [[log_prob for _, log_prob in row] for row in rows]
        return Children(torch.tensor(tokens, dtype=torch.int64), torch.tensor(log_probs, dtype=torch.float64))

    def advance(self, states: Tensor, tokens: Tensor) -> Tensor:
        states = states.clone()
        for state, token in zip(states, tokens, strict=True):
            free = (state < 0).nonzero()
            if len(free):
                state[free[0]] = float(token)
        return states


def quarters(seed: int, vocabulary: int, children: int, impossible: float = 0.0) -> Law:
    def law(path: Path) -> list[tuple[int, float]]:
        rng = np.random.default_rng([seed, len(path), *path])
        tokens = rng.permutation(vocabulary)[:children].tolist()
        log_probs = -np.sort(rng.integers(0, 5, children)) / 4
        log_probs[children - rng.binomial(children, impossible) :] = -math.inf
        return list(zip(tokens, log_probs.tolist(), strict=True))

    return law


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_both_builders_equal_brute_force_ties_included(data: st.DataObject) -> None:
    vocabulary, horizon = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    children = data.draw(st.integers(1, min(vocabulary, 4)))
    impossible = data.draw(st.sampled_from([0.0, 0.0, 0.3]))
    law = quarters(data.draw(st.integers(0, 2**20)), vocabulary, children, impossible)
    nodes = brute_force(law, horizon)
    budget = data.draw(st.integers(0, min(len(nodes) + 1, 40)) | st.just(len(nodes) + 1))
    scorer = LawScorer(law, horizon)
    by_heap = heap(scorer, 3, budget)
    assert by_heap.anchor == 3
    assert_is(by_heap, nodes[:budget])
    assert_same(frontier(scorer, 3, budget), by_heap)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_marginal_trees_with_equal_logits_agree(data: st.DataObject) -> None:
    vocabulary, depths = data.draw(st.integers(2, 6)), data.draw(st.integers(1, 4))
    row = st.lists(st.integers(-1, 1) | st.floats(-4, 4), min_size=vocabulary, max_size=vocabulary)
    dtype = data.draw(st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
    logits = torch.tensor(data.draw(st.lists(row, min_size=depths, max_size=depths)), dtype=dtype)
    child_cap, candidates = data.draw(st.integers(1, 7)), data.draw(st.none() | st.integers(1, 7))
    scorer = MarginalScorer(logits, child_cap, candidates)
    width = scorer.table.tokens.shape[1]
    whole = sum(width**depth for depth in range(1, depths + 1))
    budget = data.draw(st.integers(0, min(whole + 1, 60)) | st.just(whole + 1))
    tree = heap(scorer, 0, budget)
    assert len(tree) == min(budget, whole)
    assert_same(frontier(scorer, 0, budget), tree)
    rows = [naive_children(r, r, child_cap, candidates) for r in logits.double().tolist()]
    best = brute_force(lambda path: rows[len(path)], depths)[:budget]
    assert tree.log_probs[1:].tolist() == pytest.approx([node.score for node in best], abs=1e-5)


def law_of(given_round: Round, child_cap: int, candidates: int | None) -> Law:
    def law(path: Path) -> list[tuple[int, float]]:
        base = given_round.base_logits[len(path)].tolist()
        return naive_children(base, naive_logits(given_round, path), child_cap, candidates)

    return law


def conditional(given_round: Round, child_cap: int, candidates: int | None) -> ConditionalScorer:
    parts = given_round.head, given_round.hidden, given_round.base_logits, given_round.anchor
    return ConditionalScorer(*parts, child_cap, candidates)


@pytest.mark.parametrize(("vocabulary", "depths"), [(2, 4), (3, 4), (4, 3), (6, 2), (5, 1)])
@pytest.mark.parametrize("candidates", [1, 2, 4, None])
def test_conditional_trees_equal_brute_force(vocabulary: int, depths: int, candidates: int | None) -> None:
    for seed, child_cap in itertools.product(range(2), [2, vocabulary]):
        given_round = random_round(vocabulary, depths, seed, uncorrected=seed)
        nodes = brute_force(law_of(given_round, child_cap, candidates), depths)
        scorer = conditional(given_round, child_cap, candidates)
        for budget in {0, 1, 2, 3, 5, 8, 13, 21, len(nodes) - 1, len(nodes), len(nodes) + 1}:
            for builder in (heap, frontier):
                assert_is(builder(scorer, given_round.anchor, budget), nodes[:budget], 1e-12)


def test_in_float32_the_builders_differ_only_where_scores_are_closer_than_1e_4() -> None:
    for seed in range(200):
        given_round = random_round(vocabulary=8, depths=5, seed=seed).to(torch.float32)
        scorer = conditional(given_round, 8, 6)
        one, other = (builder(scorer, 0, 24) for builder in (heap, frontier))
        assert np.abs(one.log_probs - other.log_probs).max() < 1e-4
        scores = dict(zip(paths(one), one.log_probs[1:], strict=True))
        scores_of_other = dict(zip(paths(other), other.log_probs[1:], strict=True))
        for path in scores.keys() ^ scores_of_other.keys():
            score = scores.get(path, scores_of_other.get(path))
            assert abs(score - one.log_probs[-1]) < 1e-4, "only nodes at the cut may be swapped"


GOLDEN = torch.tensor([[0.6, 0.3, 0.1], [0.5, 0.4, 0.1], [0.9, 0.06, 0.04]], dtype=torch.float64)


@both_builders
def test_golden_vectors(builder: Builder) -> None:
    tree = builder(MarginalScorer(GOLDEN.log(), 8), 9, 8)
    expected = {
        (0,): 0.6,
        (0, 0): 0.3,
        (1,): 0.3,
        (0, 0, 0): 0.27,
        (0, 1): 0.24,
        (0, 1, 0): 0.216,
        (1, 0): 0.15,
        (1, 0, 0): 0.135,
    }
    found = dict(zip(paths(tree), np.exp(tree.log_probs[1:]).tolist(), strict=True))
    assert found == pytest.approx(expected, abs=1e-12)
    assert {paths(tree)[1], paths(tree)[2]} == {(0, 0), (1,)}, "equal at .3, in either order"
    assert paths(tree)[3:] == list(expected)[3:]
    assert tree.expected_accepted() == pytest.approx(2.211, abs=1e-12)
    assert paths(builder(MarginalScorer(GOLDEN.log(), 1), 9, 1)) == [(0,)]
    assert set(paths(builder(MarginalScorer(GOLDEN.log(), 2), 9, 3))) == {(0,), (0, 0), (1,)}
    assert len(builder(MarginalScorer(GOLDEN.log(), 1000), 9, 1000)) == 3 + 9 + 27


@both_builders
def test_golden_ties(builder: Builder) -> None:
    tree = builder(MarginalScorer(torch.full((2, 2), 0.5).log(), 2), 9, 10)
    triples = zip(tree.parents[1:].tolist(), tree.depths[1:].tolist(), tree.tokens[1:].tolist(), strict=True)
    assert list(triples) == [(0, 1, 0), (0, 1, 1), (1, 2, 0), (1, 2, 1), (2, 2, 0), (2, 2, 1)]


@pytest.mark.parametrize("budget", range(1, 7))
@both_builders
def test_no_other_tree_of_the_budget_expects_more(builder: Builder, budget: int) -> None:
    given_round = random_round(vocabulary=2, depths=3, seed=7)
    probability = {n.tokens: math.exp(n.score) for n in brute_force(law_of(given_round, 2, None), 3)}
    closed = [
        nodes
        for nodes in itertools.combinations(probability, budget)
        if all(len(path) == 1 or path[:-1] in nodes for path in nodes)
    ]
    best = max(sum(probability[path] for path in nodes) for nodes in closed)
    tree = builder(conditional(given_round, 2, None), given_round.anchor, budget)
    assert tree.expected_accepted() == pytest.approx(best, abs=1e-12)


@both_builders
def test_the_sum_of_probabilities_is_the_expected_accepted_length(builder: Builder) -> None:
    tree = builder(MarginalScorer(GOLDEN.log(), 3), 0, 10)
    expected = 0.0
    for text in itertools.product(range(3), repeat=3):
        node, accepted = 0, 0
        while accepted < 3 and (step := tree.child(node, text[accepted])) is not None:
            node, accepted = step, accepted + 1
        expected += accepted * math.prod(float(GOLDEN[d, token]) for d, token in enumerate(text))
    assert tree.expected_accepted() == pytest.approx(expected, abs=1e-12)


@both_builders
def test_the_first_b_nodes_are_the_tree_of_budget_b(builder: Builder) -> None:
    scorers: list[Scorer] = [LawScorer(quarters(seed, 4, 3), 3) for seed in range(5)]
    scorers.append(MarginalScorer(torch.zeros(3, 4), 4))
    for scorer in scorers:
        large = builder(scorer, 1, 30)
        for budget in range(31):
            assert_same(builder(scorer, 1, budget), large.prefix(budget))


@both_builders
@pytest.mark.parametrize("candidates", [1, 3, None])
def test_without_a_correction_the_conditional_tree_is_the_marginal_tree(
    builder: Builder, candidates: int | None
) -> None:
    for seed in range(5):
        given_round = random_round(vocabulary=6, depths=4, seed=seed)
        given_round.base_logits = given_round.base_logits.round(decimals=seed % 2)  # ties on every other seed
        given_round.head.w2.weight.zero_()
        marginal = MarginalScorer(given_round.base_logits, 5, candidates)
        for budget in (0, 1, 7, 50):
            tree = builder(conditional(given_round, 5, candidates), 0, budget)
            assert_same(tree, builder(marginal, 0, budget))


@both_builders
def test_as_many_candidates_as_the_vocabulary_is_no_restriction(builder: Builder) -> None:
    given_round = random_round(vocabulary=5, depths=3, seed=1)
    whole = builder(conditional(given_round, 5, None), 0, 40)
    for candidates in (5, 6, 1000):
        assert_same(builder(conditional(given_round, 5, candidates), 0, 40), whole)


def all_scorers(given_round: Round, child_cap: int, candidates: int | None) -> list[Scorer]:
    parts = given_round.head, given_round.hidden, given_round.base_logits, given_round.anchor
    return [
        MarginalScorer(given_round.base_logits, child_cap, candidates),
        GreedyPathScorer(*parts, child_cap, candidates),
        ConditionalScorer(*parts, child_cap, candidates),
    ]


def test_a_tree_of_width_one_is_the_chain() -> None:
    for seed in range(10):
        given_round = random_round(vocabulary=5, depths=4, seed=seed)
        for scorer in all_scorers(given_round, 1, 3):
            drafted = chain(scorer, 2)
            assert drafted.parents.tolist() == [-1, 0, 1, 2, 3] and drafted.anchor == 2
            for budget in range(6):
                assert_same(heap(scorer, 2, budget), chain(scorer, 2, length=budget))
                assert_same(frontier(scorer, 2, budget), drafted.prefix(budget))


def test_the_chain_takes_the_best_token_at_each_step() -> None:
    given_round = random_round(vocabulary=5, depths=4, seed=3)
    path: Path = ()
    law, score = law_of(given_round, 5, None), 0.0
    for _ in range(4):
        token, log_prob = law(path)[0]
        path, score = (*path, token), score + log_prob
    for scorer in all_scorers(given_round, 5, None)[1:]:
        drafted = chain(scorer, given_round.anchor)
        assert tuple(drafted.path_tokens(4)) == path
        assert drafted.log_probs[4] == pytest.approx(score, abs=1e-12)


@both_builders
def test_the_greedy_chain_scores_alike_in_the_two_corrected_trees(builder: Builder) -> None:
    given_round = random_round(vocabulary=4, depths=3, seed=5)
    _, greedy_path, per_path = (builder(s, given_round.anchor, 84) for s in all_scorers(given_round, 4, None))
    node_a = node_b = 0
    for depth in range(1, 4):
        node_a, node_b = greedy_path.children(node_a)[0], per_path.children(node_b)[0]
        assert greedy_path.tokens[node_a] == per_path.tokens[node_b]
        assert greedy_path.log_probs[node_a] == pytest.approx(per_path.log_probs[node_b], abs=1e-12)
        assert greedy_path.depths[node_a] == depth


@both_builders
def test_tokens_zero_and_one_are_tokens_like_any_other(builder: Builder) -> None:
    tree = builder(MarginalScorer(torch.tensor([[3.0, 2.0, 0.0, 0.0]] * 3), 2), 0, 14)
    assert set(paths(tree)) == {p for n in (1, 2, 3) for p in itertools.product((0, 1), repeat=n)}
    assert paths(tree)[0] == (0,) and tree.child(0, 0) == 1


@both_builders
def test_a_token_of_probability_zero_is_never_drafted(builder: Builder) -> None:
    logits = torch.tensor([[0.0, -torch.inf, 1.0], [-torch.inf, 0.0, -torch.inf]])
    for candidates in (None, 2, 3):
        tree = builder(MarginalScorer(logits, 3, candidates), 0, 50)
        assert set(paths(tree)) == {(0,), (2,), (0, 1), (2, 1)}


@both_builders
@pytest.mark.parametrize("bad", [-torch.inf, torch.nan])
def test_below_logits_that_allow_nothing_the_tree_just_ends(builder: Builder, bad: float) -> None:
    logits = torch.tensor([[2.0, 1.0], [bad, bad], [0.0, 0.0]])
    scorer = MarginalScorer(logits, 2)
    assert paths(builder(scorer, 0, 9)) == [(0,), (1,)]
    assert paths(chain(scorer, 0)) == [(0,)]


@both_builders
def test_degenerate_rounds(builder: Builder) -> None:
    root_only = DraftTree.root_only(5)
    assert_same(builder(MarginalScorer(torch.zeros(3, 4), 2), 5, 0), root_only)
    assert_same(builder(MarginalScorer(torch.zeros(3, 4), 0), 5, 7), root_only)
    for scorer in all_scorers(random_round(vocabulary=4, depths=0, seed=0), 2, 3):
        assert_same(builder(scorer, 5, 7), root_only)
        assert_same(chain(scorer, 5), root_only)
    one_token = builder(MarginalScorer(torch.zeros(3, 1), 1), 5, 7)
    assert paths(one_token) == [(0,), (0, 0), (0, 0, 0)]
    assert one_token.log_probs.tolist() == [0.0] * 4
    assert not np.signbit(one_token.log_probs).any()


def test_negative_budgets_are_refused() -> None:
    scorer = MarginalScorer(torch.zeros(3, 4), 2)
    for call in (heap, frontier, chain, lambda *given: next(heap_events(*given))):
        with pytest.raises(InputError, match="budget -1 is negative"):
            call(scorer, 0, -1)


def test_the_frontier_scores_once_a_depth_and_the_heap_once_a_node() -> None:
    law = quarters(0, 4, 4)
    counted = LawScorer(law, 3)
    frontier(counted, 0, 12)
    assert counted.calls <= 3
    counted = LawScorer(law, 3)
    tree = heap(counted, 0, 12)
    assert counted.calls == sum(depth < 3 for depth in tree.depths)


def test_the_frontier_stops_when_no_lane_survives() -> None:
    """A first depth that is nearly even and a second that is not: three nodes never reach depth two."""
    logits = torch.tensor([[0.1, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    rows = [naive_children(row, row, 3, None) for row in logits.tolist()]
    counted = LawScorer(lambda path: rows[len(path)], 3)
    assert paths(frontier(counted, 0, 3)) == [(0,), (1,), (2,)]
    assert counted.calls == 2


def test_the_events_replay_the_heap() -> None:
    for seed in range(10):
        law = quarters(seed, 4, 3, impossible=0.1)
        nodes = brute_force(law, 3)
        pops = list(heap_events(LawScorer(law, 3), 6, len(nodes) + 5))
        assert [pop.node for pop in pops] == list(range(len(nodes) + 1))
        assert (pops[0].parent, pops[0].depth, pops[0].token, pops[0].log_prob) == (-1, 0, 6, 0.0)
        replay: list[tuple[float, int, Path, int]] = []
        for pop, node in zip(pops, [None, *nodes], strict=True):
            if node is not None:
                cost, depth, ranks, token = heapq.heappop(replay)
                assert (-cost, depth, ranks, token) == (
                    node.score,
                    len(node.ranks),
                    node.ranks,
                    node.tokens[-1],
                )
                assert (pop.log_prob, pop.depth, pop.rank, pop.token) == (-cost, depth, ranks[-1], token)
            for entry in pop.pushed:
                child, sibling = entry.parent == pop.node, entry.parent == pop.parent
                assert (child and entry.rank == 0) or (sibling and entry.rank == pop.rank + 1)
                heapq.heappush(replay, (-entry.log_prob, entry.depth, entry.ranks, entry.token))
            waiting = waiting_after(pops[: pop.node + 1])
            assert [(-e.log_prob, e.depth, e.ranks, e.token) for e in waiting] == sorted(replay)
        assert waiting_after(pops) == []
