"""What rules and oracles could win: against brute force over prefixes, and against decoding itself."""

import numpy as np
import pytest
from test_budget import Price
from test_lossless import sweep_case
from toy_models import cached_model, greedy, oracle_drafter, random_tree, target_of

from dominotree_lite.decode import generate
from dominotree_lite.replay import Place, places
from dominotree_lite.scoring import MarginalScorer
from dominotree_lite.stopping import (
    by_chances,
    fixed,
    on_places,
    on_rounds,
    oracle_path,
    oracle_rate,
    round_seconds,
)
from dominotree_lite.tree import DraftTree

COSTS = Price(row=0.7, bend=0.02, depth=0.5, lane=0.1)


def judged(seed: int) -> Place:
    chance = np.random.default_rng(seed)
    tree = random_tree(chance, 0, 12, 4)
    return Place(tree, tree.path(int(chance.integers(len(tree) + 1))))


@pytest.mark.parametrize("seed", range(30))
def test_oracles_are_those_of_brute_force(seed: int) -> None:
    one = judged(seed)
    seconds = round_seconds(one.tree, COSTS, 0)
    prefixes = [one.prefix(n) for n in range(len(one.tree) + 1)]
    whole = [n for n, prefix in enumerate(prefixes) if prefix.accepted == one.accepted]
    assert oracle_path(one, seconds) == min(whole)
    rates = [(1 + len(prefix.accepted)) / seconds[n] for n, prefix in enumerate(prefixes)]
    assert rates[oracle_rate(one, seconds)] == pytest.approx(max(rates))


def test_seconds_of_a_round_by_hand() -> None:
    tree = DraftTree.from_lists([9, 1, 2, 3], [-1, 0, 1, 0], [0, 1, 2, 1], [0.0, -0.1, -0.2, -3])
    # drafting 5; verification 20 + 0.7 n + 0.02 n^2; building 0.5 a depth and 0.1 a lane
    wanted = [25, 25.72 + 0.5 + 0.2, 26.48 + 1 + 0.3, 27.28 + 1 + 0.4]
    np.testing.assert_allclose(round_seconds(tree, COSTS, 0), wanted)


def test_recorded_rounds_add_up() -> None:
    target, prompt, _ = sweep_case(5)
    drafter = oracle_drafter(target, prompt, 30, "dflash", True, block=5, wrong=0.6)
    rounds = generate(prompt, target, drafter, method="ddtree", budget=20, max_new_tokens=14).rounds
    every = on_rounds(rounds, COSTS, fixed(99))
    assert every.rounds == len(rounds) and every.nodes == sum(len(r.tree) for r in rounds)
    assert every.tokens == sum(len(r.accepted) + 1 for r in rounds)
    assert every.seconds == pytest.approx(sum(round_seconds(r.tree, COSTS, r.start)[-1] for r in rounds))
    path, rate, rule = (on_rounds(rounds, COSTS, policy) for policy in (oracle_path, oracle_rate, by_chances(np.exp)))
    assert path.tokens == every.tokens and path.nodes < every.nodes
    assert path.tokens_per_second > every.tokens_per_second
    assert rule.nodes < every.nodes
    best = [
        max((1 + sum(a <= n for a in r.accepted)) / s for n, s in enumerate(round_seconds(r.tree, COSTS, r.start)))
        for r in rounds
    ]
    found = [on_rounds([r], COSTS, oracle_rate).tokens_per_second for r in rounds]
    assert found == pytest.approx(best) and rate.rounds == len(rounds)


@pytest.mark.parametrize("budget", [1, 4, 12])
def test_places_are_walked_as_decoding_goes(budget: int) -> None:
    prompt, new = [3, 1, 4], 21
    target = target_of(cached_model())
    text = greedy(target.model, prompt, new)
    drafter = oracle_drafter(target, prompt, new + 8, "dflash", True, block=5, wrong=0.6)
    scorers = {"ddtree": lambda draft, anchor: MarginalScorer(draft.base_logits, 12)}
    found = places(prompt, text, target, drafter, scorers, 12)["ddtree"]
    walked = on_places(found, len(prompt), COSTS, fixed(budget))
    result = generate(prompt, target, drafter, method="ddtree", budget=budget, child_cap=12, max_new_tokens=new)
    assert walked.rounds == len(result.rounds) and walked.tokens == new - 1
    undrafted = sum(not len(r.tree) for r in result.rounds)  # nothing fits before the limit; a replay drafts one deep
    assert walked.nodes == sum(len(r.tree) for r in result.rounds) + budget * undrafted
    assert walked.tau == result.tau
