"""The gap between promise and acceptance taken apart: every column against plain passes over the same nodes."""

import numpy as np
import pytest
from toy_models import cached_model, plain_logits, random_drafter, target_of

from dominotree_lite.causes import OTHER, OWN, gaps, path_chances
from dominotree_lite.decode import Settings, generate
from dominotree_lite.errors import InputError
from dominotree_lite.tree import DraftTree


def test_a_path_s_chance_is_the_product_along_it() -> None:
    tree = DraftTree.from_lists([0, 1, 2, 3], [-1, 0, 1, 0], [0, 1, 2, 1], [0, -1, -2, -3])
    assert path_chances(tree, np.array([0.3, 0.5, 0.4, 0.1])).tolist() == [1, 0.5, 0.2, 0.1]


def test_every_column_is_that_of_plain_passes() -> None:
    target = target_of(cached_model())
    drafter, settings = random_drafter(target, "domino", True), Settings(budget=8)
    result = generate([3, 1, 4], target, drafter, budget=8, candidates=None, max_new_tokens=25)
    ids = result.prompt_ids + result.token_ids
    drafted = [r for r in result.rounds if len(r.tree) == 8 and r.start + 8 < len(ids)]
    rows = gaps([ids[: r.start + 1] for r in drafted], target, drafter, settings, (5, None))
    assert [(row.chosen_by, row.candidates) for row in rows] == [(OWN, 5), (OWN, None), (OTHER, None)]
    few, every, other = rows
    for row in rows:
        gap = row.renormalising + row.drafting + row.greediness
        assert row.promised - row.accepted == pytest.approx(gap)
    assert every.promised == pytest.approx(np.mean([r.tree.expected_accepted() for r in drafted]), rel=1e-4)
    assert every.whole == pytest.approx(every.promised, rel=1e-4)  # nothing was renormalised
    assert few.renormalising > 0
    assert every.whole >= other.whole  # no other 8 nodes promise more by this score
    assert every.accepted == np.mean([len(r.accepted) for r in drafted])
    law = 0.0
    for one in drafted:
        for node in range(1, len(one.tree) + 1):
            path = one.tree.path_tokens(node)
            before = ids[: one.start + 1]
            probs = plain_logits(target.model, [*before, *path]).double().softmax(-1)
            law += np.prod([float(probs[len(before) - 1 + i, token]) for i, token in enumerate(path)])
    assert every.target == pytest.approx(law / len(drafted), rel=1e-3)


def test_nothing_to_look_into_is_refused() -> None:
    target = target_of(cached_model())
    with pytest.raises(InputError, match="no rounds"):
        gaps([], target, random_drafter(target, "domino"), Settings())
    with pytest.raises(InputError, match="domino drafter"):
        gaps([[1, 2]], target, random_drafter(target, "dflash"), Settings())
