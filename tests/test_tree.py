"""DraftTree against parent walking on random trees, and each refusal."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dominotree_lite.errors import InputError
from dominotree_lite.tree import DraftTree


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    size = draw(st.integers(0, 12))
    parents, depths, log_probs, tokens = [-1], [0], [0.0], [draw(st.integers(0, 9))]
    for node in range(1, size + 1):
        parent = draw(st.integers(0, node - 1))
        used = {tokens[i] for i in range(1, node) if parents[i] == parent}
        tokens.append(draw(st.sampled_from([token for token in range(20) if token not in used])))
        parents.append(parent)
        depths.append(depths[parent] + 1)
        log_probs.append(log_probs[parent] - draw(st.floats(0, 5)))
    return DraftTree.from_lists(tokens, parents, depths, log_probs)


def small() -> dict[str, list[Any]]:
    """Two children 0 and 1 of the anchor 7, one child 0 below each; token 0 is a token like any other."""
    return {
        "tokens": [7, 0, 1, 0, 0],
        "parents": [-1, 0, 0, 1, 2],
        "depths": [0, 1, 1, 2, 2],
        "log_probs": [0.0, -0.5, -1.0, -1.0, -2.5],
    }


def walk(tree: DraftTree, node: int) -> list[int]:
    """From the node up to the root, both included."""
    return [node] if node == 0 else [node, *walk(tree, int(tree.parents[node]))]


@given(trees())
def test_ancestors_and_paths_equal_walking_up(tree: DraftTree) -> None:
    rows = tree.ancestors()
    assert rows.dtype == np.bool_ and rows.shape == (len(tree) + 1, len(tree) + 1)
    for node in range(len(tree) + 1):
        assert set(np.flatnonzero(rows[node])) == set(walk(tree, node))
        assert tree.path(node) == walk(tree, node)[::-1][1:]
        assert tree.path_tokens(node) == [tree.tokens[i] for i in walk(tree, node)[::-1][1:]]
        assert len(tree.path(node)) == tree.depths[node]


@given(trees())
def test_children_are_found_by_parent_and_by_token(tree: DraftTree) -> None:
    for node in range(len(tree) + 1):
        expected = [i for i in range(1, len(tree) + 1) if tree.parents[i] == node]
        assert tree.children(node) == expected
        by_token = {int(tree.tokens[i]): i for i in expected}
        assert all(tree.child(node, token) == by_token.get(token) for token in range(-1, 22))


@given(trees(), st.integers(0, 14))
def test_prefix_keeps_the_first_nodes(tree: DraftTree, budget: int) -> None:
    smaller = tree.prefix(budget)
    assert len(smaller) == min(budget, len(tree))
    for name in ("tokens", "parents", "depths", "log_probs"):
        assert getattr(smaller, name).tolist() == getattr(tree, name).tolist()[: budget + 1]


@given(trees())
def test_json_round_trip_is_exact(tree: DraftTree) -> None:
    again = DraftTree.from_json(json.loads(json.dumps(tree.to_json())))
    assert again.to_json() == tree.to_json()
    assert again.tokens.dtype == np.int64 and again.log_probs.dtype == np.float64


def test_the_small_tree_by_hand() -> None:
    tree = DraftTree.from_lists(**small())
    assert len(tree) == 4 and tree.anchor == 7
    assert tree.children(0) == [1, 2] and tree.children(3) == []
    assert tree.child(0, 0) == 1 and tree.child(2, 0) == 4 and tree.child(0, 7) is None
    assert tree.path(4) == [2, 4] and tree.path_tokens(4) == [1, 0] and tree.path(0) == []
    assert tree.expected_accepted() == pytest.approx(sum(map(math.exp, [-0.5, -1.0, -1.0, -2.5])), abs=1e-15)


def test_root_only() -> None:
    tree = DraftTree.root_only(0)
    assert len(tree) == 0 and tree.anchor == 0
    assert tree.children(0) == [] and tree.child(0, 0) is None
    assert tree.expected_accepted() == 0.0 and tree.ancestors().tolist() == [[True]]
    assert tree.prefix(0).to_json() == tree.to_json()


def test_arrays_are_copies_and_read_only() -> None:
    tokens = np.array([7, 1])
    tree = DraftTree(tokens, np.array([-1, 0]), np.array([0, 1]), np.array([0.0, -1.0]))
    tokens[1] = 5
    assert tree.tokens.tolist() == [7, 1]
    with pytest.raises(ValueError, match="read-only"):
        tree.tokens[1] = 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": [7, 0, 1, 0]}, "equally long"),
        ({"tokens": [[7, 0, 1, 0, 0]]}, "flat"),
        ({name: [] for name in small()}, "at least the root"),
        ({"parents": [0, 0, 0, 1, 2]}, "node 0 is the root"),
        ({"depths": [1, 2, 2, 3, 3]}, "node 0 is the root"),
        ({"log_probs": [-0.1, -0.5, -1.0, -1.0, -2.5]}, "node 0 is the root"),
        ({"parents": [-1, 0, 0, 3, 2]}, "node 3 does not come after its parent"),
        ({"parents": [-1, 0, 0, 4, 2]}, "node 3 does not come after its parent"),
        ({"parents": [-1, 0, 0, 1, -1]}, "node 4 does not come after its parent"),
        ({"depths": [0, 1, 1, 3, 2]}, "node 3 is not one deeper"),
        ({"log_probs": [0.0, -0.5, -1.0, -0.4, -2.5]}, "node 3 scores above its parent"),
        ({"log_probs": [0.0, 0.5, -1.0, -1.0, -2.5]}, "node 1 scores above its parent"),
        (
            {"log_probs": [0.0, -0.5, -1.0, -1.0, -math.inf]},
            "node 4 has a log-probability that is not finite",
        ),
        ({"log_probs": [0.0, -0.5, math.nan, -1.0, -2.5]}, "node 2 has a log-probability that is not finite"),
        ({"tokens": [7, 1, 1, 0, 0]}, "same token"),
    ],
)
def test_a_broken_tree_is_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        DraftTree.from_lists(**(small() | changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "record",
    [
        [],
        {name: values for name, values in small().items() if name != "depths"},
        small() | {"score": [0.0]},
        small() | {"tokens": "70100"},
        small() | {"tokens": [7, 0, 1, 0, 0.0]},
        small() | {"tokens": [7, 0, True, 0, 0]},
        small() | {"log_probs": [0.0, -0.5, None, -1.0, -2.5]},
        small() | {"parents": [-1, 0, 0, 1, 4]},
    ],
)
def test_a_broken_record_is_refused(record: Any) -> None:
    with pytest.raises(InputError, match="draft tree"):
        DraftTree.from_json(record)


def test_a_score_may_exceed_its_parents_by_rounding_only() -> None:
    DraftTree.from_lists(**(small() | {"log_probs": [0.0, -0.5, -1.0, -0.5 + 1e-9, -2.5]}))


def test_a_negative_prefix_is_refused() -> None:
    with pytest.raises(InputError, match="negative"):
        DraftTree.root_only(0).prefix(-1)
