"""Triton kernels against plain torch operations. Without a GPU they run in Triton's interpreter, in float32."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported
pytest.importorskip("triton")

from dataclasses import replace

from toy_models import random_drafter, target_of, tiny_model

from dominotree_lite.build import heap
from dominotree_lite.cuda import engine
from dominotree_lite.cuda import fused as fused_module
from dominotree_lite.cuda.audit import SIZES, random_draft, random_head
from dominotree_lite.cuda.builders import FrontierGraph
from dominotree_lite.cuda.fused import FusedHead, FusedLanes, best_keys, best_places
from dominotree_lite.cuda.lanes import fused_lanes
from dominotree_lite.cuda.sweep import Chosen, ScorerLanes
from dominotree_lite.decode import decode
from dominotree_lite.drafter import DominoHead, Draft
from dominotree_lite.methods import Settings
from dominotree_lite.scoring import ConditionalScorer, top
from dominotree_lite.tree import DraftTree

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NEAR = 1e-4  # of scores, which are sums of float32 log-probabilities computed in another order
# Hidden, GRU, rank, vocabulary, depths.
SMALL = (24, 16, 8, 70, 4) if DEVICE == "cpu" else (64, 48, 24, 5000, 6)


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the interpreter small tiles, so that few numbers pass through all the same steps."""
    monkeypatch.setitem(SIZES, "small", SMALL)
    if DEVICE == "cpu":
        monkeypatch.setattr(fused_module, "FEW", 16)
        monkeypatch.setattr(fused_module, "TILE", 16)
        monkeypatch.setattr(fused_module, "GROUP", 2)


def scorer_of(head: DominoHead, draft: Draft, anchor: int, budget: int, candidates: int | None) -> ConditionalScorer:
    most = budget if candidates is None else min(candidates, budget)
    return ConditionalScorer(head, draft.hidden, draft.base_logits, anchor, most, candidates)


def assert_near(tree: DraftTree, other: DraftTree) -> None:
    """The same nodes, up to places whose scores are as good as equal."""
    assert len(tree) == len(other)
    assert tree.log_probs == pytest.approx(other.log_probs, abs=NEAR)
    unlike = {*paths(tree)} ^ {*paths(other)}
    cut = min(other.log_probs)
    scores = dict(zip(paths(other), other.log_probs.tolist(), strict=True))
    assert all(abs(scores[path] - cut) < NEAR for path in unlike & scores.keys())


def paths(tree: DraftTree) -> list[tuple[int, ...]]:
    return [tuple(tree.path_tokens(node)) for node in range(len(tree) + 1)]


@pytest.mark.parametrize(("candidates", "budget"), [(1, 3), (5, 7), (16, 1), (40, 6), (300, 9), (None, 7)])
def test_the_tree_is_the_heaps(budget: int, candidates: int | None) -> None:
    head = random_head("small", DEVICE, torch.float32)
    fused = FusedHead(head)
    for seed in range(1 if DEVICE == "cpu" else 20):
        draft = random_draft("small", head.output_weight, seed)
        graph = FrontierGraph(lambda d, a: FusedLanes(fused, d, a, candidates), draft, budget)
        built = graph.build(draft, seed)
        assert_near(built, heap(scorer_of(head, draft, seed, budget, candidates), seed, budget))


@pytest.mark.parametrize("candidates", [12, 40, None])
def test_one_depth_is_that_of_plain_operations(candidates: int | None) -> None:
    """From lanes in the middle of a tree, some of which are impossible."""
    head = random_head("small", DEVICE, torch.float32)
    draft = random_draft("small", head.output_weight, 5)
    anchor = torch.tensor([3], device=DEVICE)
    ours = FusedLanes(FusedHead(head), draft, anchor, candidates)
    theirs = ScorerLanes(scorer_of(head, draft, 3, 70, candidates))
    states = torch.randn(10, SIZES["small"][1], generator=torch.Generator().manual_seed(0)).to(DEVICE)
    scores = -torch.arange(10, dtype=torch.float64, device=DEVICE)
    scores[7:] = -torch.inf
    ours.states = theirs.states = states
    for count in (1, 11):
        one, other = ours.choose(3, scores, count), theirs.choose(3, scores, count)
        torch.testing.assert_close(one.scores, other.scores.sort(descending=True).values, rtol=0, atol=NEAR)
        assert triples(one) == triples(other)


def triples(chosen: Chosen) -> set[tuple[int, int, float]]:
    return {
        (int(a), int(b), round(float(s), 3)) for a, b, s in zip(chosen.lanes, chosen.tokens, chosen.scores, strict=True)
    }


def test_a_gru_step_is_torchs_cell() -> None:
    head = random_head("small", DEVICE, torch.float32)
    lanes = FusedLanes(
        FusedHead(head), random_draft("small", head.output_weight, 0), torch.tensor([1], device=DEVICE), 8
    )
    lanes.states = torch.randn(9, SIZES["small"][1], generator=torch.Generator().manual_seed(1)).to(DEVICE)
    parents, tokens = torch.tensor([0, 8, 3, 3], device=DEVICE), torch.tensor([69, 0, 7, 8], device=DEVICE)
    expected = head.advance(lanes.states[parents], tokens)
    lanes.advance(Chosen(parents, tokens, torch.zeros(4, dtype=torch.float64, device=DEVICE)))
    torch.testing.assert_close(lanes.states, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("candidates", [6, None])
def test_the_graph_engine_on_kernels_decodes_as_the_eager_one(
    candidates: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = target_of(tiny_model("llama", 40).to(DEVICE))
    drafter = random_drafter(target, "domino")
    head = drafter.head
    assert head is not None
    monkeypatch.setattr(engine, "lanes_for", lambda drafter, settings: fused_lanes(head, settings.candidates))
    settings = Settings(budget=5, candidates=candidates, max_new_tokens=6)
    eager, graph = (decode([3, 1, 4], target, drafter, replace(settings, engine=e)) for e in ("eager", "graph"))
    assert graph.token_ids == eager.token_ids
    for ours, theirs in zip(graph.rounds, eager.rounds, strict=True):
        assert_near(ours.tree, theirs.tree)


@pytest.mark.parametrize(("width", "count"), [(1, 1), (10, 10), (100, 5), (150, 40)])
def test_places_are_those_of_a_stable_order(width: int, count: int) -> None:
    """Values are full of ties and of both signs, zeros included."""
    values = torch.randint(-4, 5, (3, width), generator=torch.Generator().manual_seed(0)).float().to(DEVICE)
    assert best_places(values, count).equal(top(values, count))


def test_keys_are_merged_in_any_number_of_steps() -> None:
    keys = torch.randint(-(2**60), 2**60, (2, 200), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    assert best_keys(keys, 10)[:, :10].equal(keys.sort(descending=True).values[:, :10])
