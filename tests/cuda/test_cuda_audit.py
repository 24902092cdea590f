"""The audit finds nothing where nothing differs, and finds what does."""

import torch

from dominotree_lite.cuda.audit import audit, gap
from dominotree_lite.tree import DraftTree


def test_nothing_differs_in_double_precision() -> None:
    for candidates in (8, 64, None):
        found = audit("tiny", "cpu", torch.float64, 24, candidates, {"heap-graph": 10, "frontier-graph": 20})
        assert found == {"heap-graph": {"unequal": []}, "frontier-graph": {"differences": []}}


def test_a_gap_is_that_of_the_scores_at_one_place() -> None:
    tree = DraftTree.from_lists([1, 2, 3], [-1, 0, 0], [0, 1, 1], [0.0, -1.0, -2.0])
    other = DraftTree.from_lists([1, 2, 4], [-1, 0, 0], [0, 1, 1], [0.0, -1.0, -2.5])
    assert gap(tree, tree) is None
    assert gap(tree, other) == 0.5
