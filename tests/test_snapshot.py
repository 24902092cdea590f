"""One round held still: its trees and their verdicts, against plain decoding that knows no trees."""

import numpy as np
import pytest
import torch
from toy_models import cached_model, greedy, oracle_drafter, plain_logits, random_drafter, target_of

from dominotree_lite.decode import Settings, generate
from dominotree_lite.drafter import Drafter
from dominotree_lite.errors import InputError
from dominotree_lite.snapshot import Verdict, snapshot
from dominotree_lite.target import Target

PROMPT = [5, 9, 11, 3]
LADDER = ("domino", "marginal", "greedypath", "dominotree")
SETTINGS = Settings(budget=12, candidates=20)


@pytest.fixture(scope="module")
def target() -> Target:
    return target_of(cached_model())


@pytest.fixture(scope="module")
def drafter(target: Target) -> Drafter:
    """Wrong at every other place, so that accepted paths are of many lengths."""
    return oracle_drafter(target, PROMPT, 30, "domino", wrong=0.5)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_every_verdict_is_plain_decodings(target: Target, drafter: Drafter, count: int) -> None:
    ids = [*PROMPT, *greedy(target.model, PROMPT, count)]
    moment = snapshot(ids, target, drafter, LADDER, SETTINGS)
    assert (moment.context_ids, moment.anchor) == (ids[:-1], ids[-1])
    assert list(moment.verdicts) == list(LADDER)
    for verdict in moment.verdicts.values():
        assert verdict.tokens == greedy(target.model, ids, len(verdict.tokens))
        assert verdict.accepted == verdict.tree.path(verdict.accepted[-1] if verdict.accepted else 0)
        np.testing.assert_allclose(verdict.target_probs, plain_probabilities(target, ids, verdict), rtol=1e-4)


def plain_probabilities(target: Target, ids: list[int], verdict: Verdict) -> list[float]:
    """Each node's, read off one pass over its own path; the root's off the text before the anchor."""
    found = []
    for node in range(len(verdict.tree) + 1):
        *before, token = [*ids, *verdict.tree.path_tokens(node)]
        found.append(float(plain_logits(target.model, before)[-1].double().softmax(-1)[token]))
    return found


@pytest.mark.parametrize("method", LADDER)
def test_a_round_of_a_result_comes_back(target: Target, method: str) -> None:
    drafter = random_drafter(target, "domino", shift=True)
    options = {"budget": SETTINGS.budget, "candidates": SETTINGS.candidates, "max_new_tokens": 20}
    result = generate(PROMPT, target, drafter, method=method, **options)
    ids = result.prompt_ids + result.token_ids
    deep_enough = [one for one in result.rounds if one.start + drafter.horizon + 1 < len(ids)]
    assert len(deep_enough) > 5
    for one in deep_enough:
        verdict = snapshot(ids[: one.start + 1], target, drafter, [method], SETTINGS).verdicts[method]
        assert verdict.tree.to_json() | {"log_probs": []} == one.tree.to_json() | {"log_probs": []}
        np.testing.assert_allclose(verdict.tree.log_probs, one.tree.log_probs, atol=1e-3)
        assert (verdict.accepted, verdict.bonus) == (one.accepted, one.bonus)


def test_trees_do_not_see_each_other(target: Target, drafter: Drafter) -> None:
    ids = [*PROMPT, *greedy(target.model, PROMPT, 4)]
    together = snapshot(ids, target, drafter, LADDER, SETTINGS).verdicts
    for method in LADDER:
        alone = snapshot(ids, target, drafter, [method], SETTINGS).verdicts[method]
        np.testing.assert_array_equal(together[method].target_probs, alone.target_probs)


def test_the_draft_is_the_drafters_own(target: Target, drafter: Drafter) -> None:
    ids = [*PROMPT, *greedy(target.model, PROMPT, 3)]
    draft = snapshot(ids, target, drafter, [], Settings(slots=2)).draft
    torch.testing.assert_close(draft.base_logits, drafter.model.rows[len(ids) : len(ids) + 2])


def test_plain_decoding_has_a_root_alone(target: Target, drafter: Drafter) -> None:
    verdict = snapshot(PROMPT, target, drafter, ["ar"], SETTINGS).verdicts["ar"]
    assert (len(verdict.tree), verdict.accepted) == (0, [])
    assert verdict.tokens == greedy(target.model, PROMPT, 1)


def test_what_can_not_be_shown_is_refused(target: Target, drafter: Drafter) -> None:
    with pytest.raises(InputError, match="1 tokens: a round needs an anchor"):
        snapshot([5], target, drafter, LADDER, SETTINGS)
    with pytest.raises(InputError, match="no method 'tree'"):
        snapshot(PROMPT, target, drafter, ["tree"], SETTINGS)
    with pytest.raises(InputError, match="needs a dflash drafter"):
        snapshot(PROMPT, target, drafter, ["ddtree"], SETTINGS)
