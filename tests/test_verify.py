"""The walk, the mask and the sampling, against enumeration and plain loops. No model."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import chain, combinations, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_models import Choose, law, naive_law, random_tree
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from dominotree_lite.errors import InputError
from dominotree_lite.tree import DraftTree
from dominotree_lite.verify import Sampling, Walk, target_draws, tree_inputs, walk

#        0
#      / | \
#     1  2  3        tokens 5, 6, 7 below the anchor 9
#       / \  \
#      4   5  6      tokens 5, 7 below 6; token 5 below 7
#      |
#      7             token 9
BUSHY = DraftTree.from_lists(
    [9, 5, 6, 7, 5, 7, 5, 9],
    [-1, 0, 0, 0, 2, 2, 3, 4],
    [0, 1, 1, 1, 2, 2, 2, 3],
    [0, -1, -1, -2, -3, -3, -4, -5],
)


def test_inputs_of_a_tree_written_out() -> None:
    inputs = tree_inputs(BUSHY, start=10)
    assert inputs.tokens.tolist() == [9, 5, 6, 7, 5, 7, 5, 9]
    assert inputs.positions.tolist() == [10, 11, 11, 11, 12, 12, 12, 13]
    assert inputs.visible.int().tolist() == [
        [1, 0, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0, 0],
        [1, 0, 1, 0, 0, 0, 0, 0],
        [1, 0, 0, 1, 0, 0, 0, 0],
        [1, 0, 1, 0, 1, 0, 0, 0],
        [1, 0, 1, 0, 0, 1, 0, 0],
        [1, 0, 0, 1, 0, 0, 1, 0],
        [1, 0, 1, 0, 1, 0, 0, 1],
    ]


@settings(deadline=None)
@given(st.integers(0, 30), st.integers(0, 10**6))
def test_each_node_sees_its_own_path_and_no_other_node(size: int, seed: int) -> None:
    tree = random_tree(np.random.default_rng(seed), anchor=0, size=size, vocabulary=4)
    visible = tree_inputs(tree, start=3).visible
    for node in range(size + 1):
        path, step = set(), node
        while step != -1:
            path.add(step)
            step = int(tree.parents[step])
        assert set(visible[node].nonzero().flatten().tolist()) == path


@pytest.mark.parametrize(
    ("texts", "nodes", "bonus"),
    [
        ({0: 8}, [], 8),
        ({0: 9}, [], 9),  # the anchor's own token is not its child
        ({0: 5, 1: 5}, [1], 5),  # token 5 exists at depth 2, but not below this one
        ({0: 6, 2: 7, 5: 0}, [2, 5], 0),  # two second siblings
        ({0: 7, 3: 5, 6: 9}, [3, 6], 9),
        ({0: 6, 2: 5, 4: 9, 7: 9}, [2, 4, 7], 9),  # down to a leaf
    ],
)
def test_the_walk_follows_the_target_and_draws_once_at_each_visited_node(
    texts: dict[int, int], nodes: list[int], bonus: int
) -> None:
    drawn: list[int] = []

    def draw(node: int) -> int:
        drawn.append(node)
        return texts[node]

    found = walk(BUSHY, draw)
    assert found == Walk(nodes, bonus)
    assert drawn == [0, *nodes]
    assert found.tokens(BUSHY) == [int(BUSHY.tokens[n]) for n in nodes] + [bonus]


def test_the_walk_on_a_bare_root_yields_one_token() -> None:
    assert walk(DraftTree.root_only(4), lambda node: 7) == Walk([], 7)


# --- The law, enumerated -----------------------------------------------------------------------------------------

SUBSETS = list(chain.from_iterable(combinations(range(3), n) for n in range(4)))
CHANCE = np.random.default_rng(0)
TABLE = {prefix: CHANCE.dirichlet([1, 1, 1]).tolist() for n in range(3) for prefix in product(range(3), repeat=n)}


def tree_of(paths: Sequence[tuple[int, ...]]) -> DraftTree:
    """The tree that holds these paths, given in an order where each follows its own beginning."""
    place: dict[tuple[int, ...], int] = {(): 0}
    columns: list[tuple[int, int, int, float]] = [(0, -1, 0, 0.0)]
    for path in paths:
        columns.append((path[-1], place[path[:-1]], len(path), -float(len(path))))
        place[path] = len(columns) - 1
    tokens, parents, depths, scores = (list(column) for column in zip(*columns, strict=True))
    return DraftTree.from_lists(tokens, parents, depths, scores)


def two_tokens(tree: DraftTree, choose: Choose) -> tuple[int, ...]:
    """The first two tokens that come out if one round of `tree` is followed by rounds without a draft."""
    text = walk(tree, lambda node: choose(TABLE[tuple(tree.path_tokens(node))])).tokens(tree)
    while len(text) < 2:
        bare = DraftTree.root_only(text[-1])
        text.append(walk(bare, lambda node, prefix=tuple(text): choose(TABLE[prefix])).bonus)
    return tuple(text[:2])


def test_every_tree_of_depth_two_over_three_tokens_leaves_the_law_as_it_is() -> None:
    wanted = {(a, b): TABLE[()][a] * TABLE[(a,)][b] for a in range(3) for b in range(3)}
    for first in SUBSETS:
        for seconds in product(SUBSETS, repeat=len(first)):
            paths = [(a,) for a in first] + [(a, b) for a, s in zip(first, seconds, strict=True) for b in s]
            tree = tree_of(paths)
            found = law(lambda choose, tree=tree: two_tokens(tree, choose))
            assert found == pytest.approx(wanted, abs=1e-12)


def test_shared_prefixes_are_drawn_once() -> None:
    # ab, ac, ad and ef with p(a) = p(e) = 1/2: one draw a copy of a path would favour a (7/8).
    tree = tree_of([(0,), (1,), (0, 0), (0, 1), (0, 2), (1, 2)])
    found = law(lambda choose: walk(tree, lambda node: choose([0.5, 0.5, 0.0])).tokens(tree)[0])
    assert found == {0: 0.5, 1: 0.5}


def test_accepting_by_p_over_q_a_token_that_was_not_sampled_is_wrong() -> None:
    p, q = (0.3, 0.7), (0.6, 0.4)
    tree = tree_of([(0,)])

    def ratio(choose: Choose) -> int:
        accept = min(1.0, p[0] / q[0])
        rest = [max(0.0, a - b) for a, b in zip(p, q, strict=True)]
        return 0 if choose([accept, 1 - accept]) == 0 else choose([r / sum(rest) for r in rest])

    assert law(ratio) == pytest.approx({0: 0.5, 1: 0.5})
    shipped = law(lambda choose: walk(tree, lambda node: choose(p)).tokens(tree)[0])
    assert shipped == pytest.approx({0: 0.3, 1: 0.7}, abs=1e-15)


# --- Sampling ----------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_the_sampled_law_is_the_warped_softmax(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 8))
    seed, temperature = data.draw(st.integers(0, 10**6)), data.draw(st.floats(0.1, 3))
    top_k, top_p = data.draw(st.integers(0, 10)), data.draw(st.floats(0.05, 1))
    logits = torch.tensor(np.random.default_rng(seed).normal(size=(3, size)) * 3, dtype=torch.float64)
    got = Sampling(temperature, top_k, top_p).probabilities(logits)
    assert got.shape == logits.shape
    for row, row_logits in zip(got.tolist(), logits.tolist(), strict=True):
        assert row == pytest.approx(naive_law(row_logits, temperature, top_k, top_p), abs=1e-12)
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    warpers += [TopKLogitsWarper(top_k)] if top_k else []
    warpers += [TopPLogitsWarper(top_p)] if top_p < 1 else []
    assert torch.equal(got, warpers(None, logits).softmax(-1))
    one = Sampling(temperature, top_k, top_p).probabilities(logits[0])  # the shape in which draws ask for it
    assert torch.equal(one, got[0])


def test_draws_follow_the_row_of_their_node() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, 0.0]])
    draw = target_draws(logits, Sampling(temperature=1.0), torch.Generator().manual_seed(0))
    for node in range(2):
        counts = Counter(draw(node) for _ in range(4000))
        expected = (4000 * logits[node].softmax(-1)).tolist()
        square = sum((counts[i] - e) ** 2 / e for i, e in enumerate(expected))
        assert square < 18.4  # chi-square, two degrees of freedom, 1 in 10,000


@pytest.mark.parametrize("temperature", [0, 0.0, 1e-300, 1e-40, 1e-6, 1e-5, 1e-4])
@pytest.mark.parametrize("scale", [1.0, 1000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_limit_of_small_temperatures_is_greedy(temperature: float, scale: float, dtype: torch.dtype) -> None:
    logits = torch.tensor(np.random.default_rng(1).normal(size=(6, 50)) * scale, dtype=dtype)
    best = logits.topk(2).values
    assert (best[:, 0] - best[:, 1]).min() > 5e-3
    for sampling in (Sampling(temperature), Sampling(temperature, top_k=5, top_p=0.9)):
        draw = target_draws(logits, sampling, torch.Generator().manual_seed(0))
        assert [draw(node) for node in range(6)] == logits.argmax(-1).tolist()
        if not sampling.greedy:
            assert sampling.probabilities(logits).isfinite().all()


def test_the_same_seed_draws_the_same_and_another_seed_does_not() -> None:
    logits = torch.zeros(1, 50)

    def drawn(seed: int) -> list[int]:
        draw = target_draws(logits, Sampling(temperature=1.0), torch.Generator().manual_seed(seed))
        return [draw(0) for _ in range(20)]

    assert drawn(3) == drawn(3) != drawn(4)


def test_top_k_above_the_vocabulary_is_the_vocabulary() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0])
    assert torch.equal(Sampling(1.0, top_k=99).probabilities(logits), logits.softmax(-1))


@pytest.mark.parametrize(
    "settings_",
    [
        (-0.1, 0, 1.0),
        (math.nan, 0, 1.0),
        (math.inf, 0, 1.0),
        (1.0, -1, 1.0),
        (1.0, 0, 0.0),
        (1.0, 0, 1.1),
        (1.0, 0, math.nan),
    ],
)
def test_impossible_sampling_is_refused_in_one_line(settings_: tuple[float, int, float]) -> None:
    with pytest.raises(InputError) as refused:
        Sampling(*settings_)
    assert "\n" not in str(refused.value)
