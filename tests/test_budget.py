"""Budgets that rules choose: against brute force over prefixes, the published loop, and plain decoding."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from test_lossless import COUNT, NEW, SAMPLINGS, Loop, sweep_case, target_law
from toy_models import ADAPTIVE, oracle_drafter, random_drafter, target_of, tiny_model

from dominotree_lite import decode
from dominotree_lite.budget import Costs, Floats, Pace, PriceRule, Rule, best_prefix
from dominotree_lite.build import frontier
from dominotree_lite.credit import IDENTITY, Credit
from dominotree_lite.decode import Result, Settings, generate
from dominotree_lite.errors import InputError
from dominotree_lite.scoring import MarginalScorer
from dominotree_lite.target import Target
from dominotree_lite.tree import DraftTree
from dominotree_lite.verify import Sampling

adaptive = pytest.mark.parametrize("method", ADAPTIVE)
FIXED = {"caddtree": "ddtree", "condadaptive": "dominotree", "caladaptive": "dominotree"}


@dataclass(frozen=True)
class Price:
    """Costs written down: verification start + row * n + bend * n^2, and building by depth and lane."""

    start: float = 20.0
    row: float = 0.0
    bend: float = 0.0
    depth: float = 0.0
    lane: float = 0.0
    drafting: float = 5.0

    def draft(self, context: int) -> float:
        return self.drafting

    def build(self, depths: int, lanes: int) -> float:
        return self.depth * depths + self.lane * lanes

    def verify(self, nodes: int, context: int) -> Floats:
        n = np.arange(nodes + 1.0)
        return self.start + self.row * n + self.bend * n**2


FLAT = Price()


def random_logits(seed: int, depths: int = 5, vocabulary: int = 7) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(depths, vocabulary, generator=generator, dtype=torch.float64) * 3


def cut(rule_type: type[Rule], costs: Costs, logits: torch.Tensor, cap: int, pace=None) -> tuple[DraftTree, Rule]:
    rule = rule_type(costs, np.exp, 100, cap, pace or Pace())
    return frontier(MarginalScorer(logits, cap), 0, cap, rule.grow), rule


# --- The rule ----------------------------------------------------------------------------------------------------


def test_the_best_prefix_is_that_of_brute_force() -> None:
    chance = np.random.default_rng(0)
    for _ in range(200):
        chances = np.sort(chance.random(chance.integers(0, 12)))[::-1] ** 3
        seconds = 1 + np.cumsum(chance.random(len(chances) + 1) * chance.choice([0, 0.01, 0.3]))
        rates = [(1 + sum(chances[:n])) / seconds[n] for n in range(len(chances) + 1)]
        found = best_prefix(chances, seconds)
        assert rates[found] == pytest.approx(max(rates))


def published(log_probs: Floats, costs: Price, cap: int) -> int:
    """CaDDTree's loop: nodes in order until one does not raise the rate."""
    seconds, promised, nodes = costs.draft(0) + costs.verify(cap, 0), 0.0, 0
    for score in log_probs[1 : cap + 1]:
        if (1 + promised + math.exp(score)) / seconds[nodes + 1] <= (1 + promised) / seconds[nodes]:
            break
        promised, nodes = promised + math.exp(score), nodes + 1
    return nodes


PRICES = [Price(row=0.5), Price(row=2), Price(row=8), Price(bend=0.05), Price(row=0.1, bend=0.01), Price(row=0.01)]


@pytest.mark.parametrize("costs", PRICES, ids=str)
def test_the_choice_is_that_of_the_published_loop(costs: Price) -> None:
    for seed in range(20):
        logits = random_logits(seed)
        whole = frontier(MarginalScorer(logits, 60), 0, 60)
        grown, rule = cut(Rule, costs, logits, 60)
        choice = rule.choose(grown)
        assert choice.nodes == published(whole.log_probs, costs, 60)
        assert grown.prefix(choice.nodes).to_json() == whole.prefix(choice.nodes).to_json()  # no lane was missed
        assert choice.expected == pytest.approx(np.exp(whole.log_probs[1 : choice.nodes + 1]).sum())
        assert choice.seconds == pytest.approx(5 + costs.verify(60, 0)[choice.nodes])  # building is free here


# From the published rule on the example of DDTree's golden vectors: 39 nodes in all, drafting costs 5.
@pytest.mark.parametrize(
    ("costs", "nodes"),
    [(FLAT, 39), (Price(row=0.5), 12), (Price(row=2), 6), (Price(row=8), 1), (Price(bend=0.05), 9)],
)
def test_known_choices(costs: Price, nodes: int) -> None:
    logits = torch.tensor([[0.6, 0.3, 0.1], [0.5, 0.4, 0.1], [0.9, 0.06, 0.04]], dtype=torch.float64).log()
    tree, rule = cut(Rule, costs, logits, 50)
    assert rule.choose(tree).nodes == nodes


@pytest.mark.parametrize("rule_type", [Rule, PriceRule])
def test_steep_costs_save_scoring_and_flat_ones_do_not(rule_type: type[Rule]) -> None:
    logits = random_logits(1)
    _, steep = cut(rule_type, Price(row=2), logits, 60)
    _, flat = cut(rule_type, FLAT, logits, 60)
    assert steep.lanes < flat.lanes / 2


@pytest.mark.parametrize("seed", range(60))
def test_depths_and_lanes_are_left_out_only_where_they_can_not_pay(seed: int) -> None:
    chance = np.random.default_rng(seed)
    costs = Price(
        start=float(chance.uniform(1, 30)),
        row=float(chance.choice([0, 0.1, 1])),
        depth=float(chance.choice([0, 0.3, 3])),
        lane=float(chance.choice([0, 0.05, 0.5])),
    )
    pace = Pace(float(chance.uniform(1, 9)), float(chance.uniform(1, 90)))
    logits = random_logits(seed, depths=8) * float(chance.uniform(0.3, 2))
    asked: list[int] = []  # lanes of each depth below the first, with nothing left out
    whole = frontier(MarginalScorer(logits, 40), 0, 40, lambda _, new: asked.append(len(new)) or new > -np.inf)
    assert whole.to_json() == frontier(MarginalScorer(logits, 40), 0, 40).to_json()
    tree, rule = cut(PriceRule, costs, logits, 40, pace)
    assert isinstance(rule, PriceRule)
    choice = rule.choose(tree)
    assert tree.prefix(choice.nodes).expected_accepted() == pytest.approx(choice.expected)
    before = costs.draft(0) + costs.build(len(asked), 1 + sum(asked[:-1]))
    beyond = np.cumsum(np.exp(whole.log_probs)) - 1 - rule.price * (before + costs.verify(40, 0))
    assert choice.expected - rule.price * choice.seconds >= beyond.max() - 1e-12


@pytest.mark.parametrize("seed", range(20))
def test_free_building_at_a_price_leaves_the_best_prefix_of_all(seed: int) -> None:
    logits, costs, pace = random_logits(seed, depths=8), Price(row=0.4, bend=0.01), Pace(seed + 1.0, 80)
    whole = frontier(MarginalScorer(logits, 40), 0, 40)
    tree, rule = cut(PriceRule, costs, logits, 40, pace)
    assert isinstance(rule, PriceRule)
    beyond = [
        whole.prefix(n).expected_accepted() - rule.price * float(costs.verify(40, 0)[n]) for n in range(len(whole) + 1)
    ]
    nodes = rule.choose(tree).nodes
    assert beyond[nodes] == pytest.approx(max(beyond), abs=1e-12)


def test_one_price_makes_more_tokens_a_second_than_the_best_rate_of_each_round() -> None:
    rounds, costs = [random_logits(seed) * (0.1 if seed % 2 else 2.5) for seed in range(40)], Price(row=1)

    def speed(rule_type: type[Rule], pace: Pace) -> float:
        tokens = seconds = 0.0
        for logits in rounds:
            tree, rule = cut(rule_type, costs, logits, 60, pace)
            choice = rule.choose(tree)
            tokens, seconds = tokens + 1 + choice.expected, seconds + choice.seconds
        return tokens / seconds

    once = speed(PriceRule, Pace(1e9 * speed(Rule, Pace()), 1e9))
    assert once > speed(Rule, Pace()) * 1.001
    better = max(speed(PriceRule, Pace(1e9 * once * share, 1e9)) for share in (0.7, 0.85, 1.15, 1.3))
    assert speed(PriceRule, Pace(1e9 * once, 1e9)) > better  # the price that it makes is the best one


def test_the_price_is_the_pace_with_a_first_node_taken_at_once() -> None:
    costs = Price(row=2, depth=0.5, lane=0.25)
    rules = [PriceRule(costs, np.exp, 0, 8, pace) for pace in (Pace(), Pace(6, 50))]
    assert [rule.price for rule in rules] == pytest.approx([2 / 27.75, 8 / 77.75])


@pytest.mark.parametrize("rule_type", [Rule, PriceRule])
@pytest.mark.parametrize("seed", range(10))
def test_children_that_are_left_out_would_not_be_chosen(rule_type: type[Rule], seed: int) -> None:
    logits = random_logits(seed, vocabulary=30) * 0.7
    costs = Price(row=3, depth=0.3, lane=0.02)
    most = rule_type(costs, np.exp, 100, 60, Pace()).children
    assert most < 15
    trees = []
    for children in (most, 30):
        rule = rule_type(costs, np.exp, 100, 60, Pace())
        tree = frontier(MarginalScorer(logits, children), 0, 60, rule.grow)
        trees.append(tree.prefix(rule.choose(tree).nodes).to_json())
    assert trees[0] == trees[1]


def test_a_dear_depth_is_left_out() -> None:
    logits, pace = random_logits(3, depths=8) / 3, Pace(3, 30)
    dear, free = (cut(PriceRule, Price(depth=depth), logits, 40, pace)[1] for depth in (5, 0))
    assert dear.depths < free.depths


@pytest.mark.parametrize("cap", [0, 1, 2])
def test_the_smallest_caps(cap: int) -> None:
    for rule_type in (Rule, PriceRule):
        tree, rule = cut(rule_type, FLAT, random_logits(0), cap)
        choice = rule.choose(tree)
        assert (choice.nodes, choice.capped) == (cap, True)


# --- In decoding -------------------------------------------------------------------------------------------------


def run(method: str, costs: Price, chances=IDENTITY, drafter=None, **options) -> Result:
    target, prompt, wanted = sweep_case(5)
    drafter = drafter or oracle_drafter(target, prompt, NEW, ADAPTIVE[method], True, block=5, wrong=0.6)
    result = generate(
        prompt, target, drafter, method=method, costs=costs, chances=chances, max_new_tokens=NEW, **options
    )
    assert result.token_ids == wanted
    return result


@adaptive
@pytest.mark.parametrize("cap", [0, 1, 7, 40])
def test_at_flat_costs_the_cap_is_the_budget(method: str, cap: int) -> None:
    target, prompt, _ = sweep_case(5)
    drafter = oracle_drafter(target, prompt, NEW, ADAPTIVE[method], True, block=5, wrong=0.6)
    free = run(method, FLAT, max_budget=cap, drafter=drafter)
    fixed = generate(prompt, target, drafter, method=FIXED[method], budget=cap, max_new_tokens=NEW)
    assert [r.tree.to_json() for r in free.rounds] == [r.tree.to_json() for r in fixed.rounds]
    assert all(r.choice is None for r in fixed.rounds)
    assert all(r.choice is None or r.choice.capped for r in free.rounds)


@adaptive
def test_where_a_node_is_priceless_none_is_drafted(method: str) -> None:
    assert {len(r.tree) for r in run(method, Price(row=1e9)).rounds} == {0}


@adaptive
def test_rounds_record_what_was_chosen(method: str) -> None:
    result = run(method, Price(row=0.4), max_budget=30)
    chosen = [(r.choice, r.tree) for r in result.rounds if r.choice]
    assert len(chosen) >= len(result.rounds) - 1  # in the last one nothing may be left to draft
    for choice, tree in chosen:
        assert choice.nodes == len(tree) <= choice.grown <= 30
        assert choice.capped == (choice.nodes == 30)
        assert choice.expected == pytest.approx(tree.expected_accepted())
    assert len({choice.nodes for choice, _ in chosen}) > 1


def test_the_price_of_a_round_is_the_pace_of_those_before() -> None:
    costs = Price(row=0.4)
    rounds = run("caladaptive", costs, max_budget=30).rounds
    pace, prices = Pace(), []
    for one in rounds:
        if one.choice:
            prices.append(PriceRule(costs, np.exp, one.start, 30, pace).price)
            scores = np.exp(one.tree.log_probs[1:])
            assert scores.min(initial=1) >= prices[-1] * 0.4  # no node below its price
            pace.add(len(one.tokens), one.choice.seconds)
    assert len(set(prices)) == len(prices) > 2


def test_chances_below_the_scores_draft_less() -> None:
    sure, unsure = (run("caladaptive", Price(row=0.4), Credit((1.0,), (share,))) for share in (1.0, 0.2))
    assert sum(len(r.tree) for r in unsure.rounds) < sum(len(r.tree) for r in sure.rounds)


@adaptive
def test_greedy_text_is_that_of_generate_at_many_costs(method: str) -> None:
    for number in range(12):
        target, prompt, wanted = sweep_case(number)
        drafter = oracle_drafter(target, prompt, NEW, ADAPTIVE[method], bool(number % 2), block=5, wrong=0.6)
        costs = Price(row=0.1 * number, depth=0.2 * (number % 3))
        chances = Credit((0.3, 0.9), (0.1, 0.8))
        result = generate(
            prompt, target, drafter, method=method, costs=costs, chances=chances, max_budget=50, max_new_tokens=NEW
        )
        assert result.token_ids == wanted


@adaptive
@pytest.mark.parametrize(("temperature", "top_k", "top_p"), SAMPLINGS)
def test_the_law_of_a_text_is_the_targets(
    method: str, temperature: float, top_k: int, top_p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = target_of(tiny_model("qwen3", vocabulary=3, dtype=torch.float64, seed=4))
    sampling = Sampling(temperature, top_k, top_p)
    drafter = random_drafter(target, ADAPTIVE[method], True, block=4, seed=2)
    loop = Loop(target, drafter, "ar", sampling)
    loop.settings = Settings(
        method, sampling=sampling, max_new_tokens=COUNT, max_budget=7, costs=Price(row=3), chances=IDENTITY
    )
    got, wanted = loop.law(monkeypatch), target_law(target, [2, 0], sampling)
    assert got == pytest.approx(wanted, abs=1e-12)
    assert {1, 2} & loop.accepted


# --- What is not there -------------------------------------------------------------------------------------------


@pytest.fixture
def nothing_measured(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Target:
    monkeypatch.setenv("DOMINOTREE_CACHE", str(tmp_path))
    target, _, _ = sweep_case(5)
    return target


@adaptive
def test_without_costs_one_line_says_what_to_run(method: str, nothing_measured: Target) -> None:
    drafter = random_drafter(nothing_measured, ADAPTIVE[method])
    with pytest.raises(InputError, match="run dominotree profile --target toy") as refused:
        generate([1, 2], nothing_measured, drafter, method=method)
    assert "\n" not in str(refused.value)


def test_a_negative_cap_is_refused() -> None:
    with pytest.raises(InputError, match="max_budget -1"):
        decode.Settings("ar", max_budget=-1)
