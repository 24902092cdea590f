"""The microscope against transformers' own single pass, and against faults put in on purpose."""

import numpy as np
import pytest
import torch
from toy_models import cached_model, greedy, oracle_drafter, plain_logits, target_of

from dominotree_lite.decode import Result, Round, StageSeconds, generate
from dominotree_lite.errors import InputError
from dominotree_lite.microscope import Rounding, commit_logits, pass_logits, path_logits, reread, turning_round
from dominotree_lite.tree import DraftTree
from dominotree_lite.verify import TreeInputs, tree_inputs

BEFORE = [3, 1, 4, 1, 5, 9]
# root 0; 1 and 2 below it, 3 below 1, 4 and 5 below 2, 6 below 5
TREE = DraftTree.from_lists(
    [2, 6, 7, 8, 10, 11, 12], [-1, 0, 0, 1, 2, 2, 5], [0, 1, 1, 2, 2, 2, 3], [-0.1 * n for n in range(7)]
)
CLOSE = 1e-4  # float32 rounding of these logits is below 1e-5


def wanted(node: int) -> torch.Tensor:
    """Logits after a node's path, by one pass over the whole text."""
    return plain_logits(cached_model(), [*BEFORE, TREE.anchor, *TREE.path_tokens(node)])[-1]


def off(found: torch.Tensor, node: int) -> float:
    return float((found - wanted(node)).abs().max())


def test_every_path_is_read_as_one_pass_over_its_text_reads_it() -> None:
    found = path_logits(target_of(cached_model()), BEFORE, TREE)
    assert max(off(row, node) for node, row in enumerate(found)) < CLOSE


def test_the_pass_over_the_tree_says_the_same_and_a_wrong_mask_or_position_does_not() -> None:
    target, right = target_of(cached_model()), tree_inputs(TREE, len(BEFORE))
    causal = torch.ones_like(right.visible).tril()
    flat = torch.arange(len(TREE) + 1) + len(BEFORE)
    found = pass_logits(target, BEFORE, right)
    assert max(off(row, node) for node, row in enumerate(found)) < CLOSE
    for wrong in (TreeInputs(right.tokens, right.positions, causal), TreeInputs(right.tokens, flat, right.visible)):
        faulty = pass_logits(target, BEFORE, wrong)
        assert off(faulty[1], 1) < CLOSE  # a first child is where a chain would have it
        assert min(off(faulty[node], node) for node in range(2, 7)) > 100 * CLOSE


def test_the_rows_of_the_path_are_the_ones_to_commit() -> None:
    target, bonus = target_of(cached_model()), 13
    after = plain_logits(cached_model(), [*BEFORE, TREE.anchor, *TREE.path_tokens(6), bonus])[-1]
    right = commit_logits(target, BEFORE, TREE, bonus, [0, *TREE.path(6)])
    front = commit_logits(target, BEFORE, TREE, bonus, [0, 1, 2, 3])
    assert float((right - after).abs().max()) < CLOSE
    assert float((front - after).abs().max()) > 100 * CLOSE


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 11, 12, 40])
def test_a_text_read_again_has_the_logits_of_one_pass(rows: int) -> None:
    text = greedy(cached_model(), BEFORE, 12)
    found = reread(target_of(cached_model()), BEFORE, text, rows)
    in_one = plain_logits(cached_model(), [*BEFORE, *text])[len(BEFORE) - 1 : -1]
    assert found.shape == in_one.shape
    assert float((found - in_one).abs().max()) < CLOSE
    assert found.argmax(-1).tolist() == text


def test_a_reading_needs_a_row_and_a_token() -> None:
    for text, rows in (([1], 0), ([], 1)):
        with pytest.raises(InputError, match="one or more"):
            reread(target_of(cached_model()), BEFORE, text, rows)


def test_rounding_is_the_change_of_the_gap_between_the_first_reading_s_two_best() -> None:
    first = torch.tensor([[1.0, 3.0, 2.5], [0.0, 5.0, 4.75], [2.0, 2.0, 0.0], [9.0, 1.0, 0.0]])
    second = torch.tensor([[7.0, 3.0, 2.0], [0.0, 4.5, 4.75], [2.0, 2.25, 0.0], [9.0, 1.0, 0.0]])
    found = Rounding.between(first, second)
    np.testing.assert_array_equal(found.gap, [0.5, 0.25, 0.0, 8.0])
    np.testing.assert_array_equal(found.change, [0.5, 0.5, 0.25, 0.0])
    assert found.flipped.tolist() == [True, True, True, False]


def one_round(accepted: list[int]) -> Round:
    return Round(0, TREE, accepted, 0, [0], StageSeconds())


def test_the_round_shown_is_the_first_that_skips_a_row_else_the_longest() -> None:
    straight, short, turned, later = one_round([1, 3]), one_round([1]), one_round([2, 5]), one_round([2, 5, 6])
    skips = one_round([1, 2])  # no path of this tree, but the front of it
    for rounds, shown in (([skips, turned, later], turned), ([short, skips], skips), ([straight], straight)):
        assert turning_round(Result("", [], [], rounds, 0.0, 0.0)) is shown
    with pytest.raises(InputError, match="more new tokens"):
        turning_round(Result("", [], [], [], 0.0, 0.0))


def test_a_real_text_has_such_a_round() -> None:
    target = target_of(cached_model())
    drafter = oracle_drafter(target, BEFORE, 14, "domino", True, wrong=0.6)
    result = generate(BEFORE, target, drafter, budget=20, max_new_tokens=14)
    one = turning_round(result)
    assert one.accepted and one.accepted != list(range(1, len(one.accepted) + 1))
