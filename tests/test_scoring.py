"""The three scorers against whole modules run over whole paths, in float64 unless precision is the point."""

import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from toy_head import Round, naive_children, naive_logits, random_round

from dominotree_lite import scoring
from dominotree_lite.errors import InputError
from dominotree_lite.scoring import ConditionalScorer, GreedyPathScorer, MarginalScorer, Scorer, top

Maker = Callable[[Round, int, int | None], Scorer]
MAKERS: dict[str, Maker] = {
    "marginal": lambda r, cap, m: MarginalScorer(r.base_logits, cap, m),
    "greedy path": lambda r, cap, m: GreedyPathScorer(r.head, r.hidden, r.base_logits, r.anchor, cap, m),
    "conditional": lambda r, cap, m: ConditionalScorer(r.head, r.hidden, r.base_logits, r.anchor, cap, m),
}
all_scorers = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def state_after(scorer: Scorer, path: tuple[int, ...]) -> Tensor:
    state = scorer.root()
    for token in path:
        state = scorer.advance(state, torch.tensor([token]))
    return state


def listed(scorer: Scorer, path: tuple[int, ...]) -> list[tuple[int, float]]:
    children = scorer.children(len(path) + 1, state_after(scorer, path))
    return list(zip(children.tokens[0].tolist(), children.log_probs[0].tolist(), strict=True))


def assert_same(got: list[tuple[int, float]], expected: list[tuple[int, float]]) -> None:
    assert [token for token, _ in got] == [token for token, _ in expected]
    assert [score for _, score in got] == pytest.approx([score for _, score in expected], abs=1e-12)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=12), st.integers(0, 14))
def test_top_takes_the_largest_and_among_equals_the_lowest_index(values: list[int], count: int) -> None:
    expected = sorted(range(len(values)), key=lambda i: (-values[i], i))[:count]
    assert top(torch.tensor(values), count).tolist() == expected
    shuffled = torch.tensor([values, values[::-1]], dtype=torch.float64)
    assert top(shuffled, count)[0].tolist() == expected


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=12), st.integers(0, 12))
def test_both_searches_of_long_rows_take_the_same(values: list[int], count: int) -> None:
    count = min(count, len(values))
    expected = sorted(range(len(values)), key=lambda i: (-values[i], i))[:count]
    assert scoring._top_of_row(torch.tensor(values), count).tolist() == expected
    assert scoring._top_by_keys(torch.tensor([values]), count)[0].tolist() == expected


def test_top_of_a_vocabulary_is_that_of_a_stable_sort() -> None:
    logits = torch.randn(3, 5000, generator=torch.Generator().manual_seed(0)).bfloat16()  # full of equal values
    whole = logits.sort(dim=-1, descending=True, stable=True).indices
    assert torch.equal(top(logits, 700), whole[:, :700])
    logits[0, 7] = torch.nan
    assert top(logits, 700).shape == (3, 700)


def test_top_copes_with_minus_infinity() -> None:
    assert top(torch.tensor([-torch.inf, 1.0, -torch.inf, -torch.inf]), 3).tolist() == [1, 0, 2]


@settings(deadline=None)
@given(st.data())
def test_marginal_children_are_the_log_softmax_of_the_depth(data: st.DataObject) -> None:
    vocabulary, depths = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    numbers = st.integers(-2, 2) | st.floats(-8, 8)  # integers for exact ties
    row = st.lists(numbers, min_size=vocabulary, max_size=vocabulary)
    logits = data.draw(st.lists(row, min_size=depths, max_size=depths))
    candidates = data.draw(st.none() | st.integers(1, vocabulary + 1))
    child_cap = data.draw(st.integers(1, vocabulary + 1))
    scorer = MarginalScorer(torch.tensor(logits, dtype=torch.float64), child_cap, candidates)
    assert scorer.horizon == depths
    for depth, base in enumerate(logits):
        expected = naive_children(base, base, child_cap, candidates)
        assert_same(listed(scorer, (0,) * depth), expected)


@pytest.mark.parametrize("uncorrected", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("candidates", [1, 2, 4, 5, 6, None])
def test_conditional_children_equal_the_whole_head_on_the_whole_path(uncorrected: int, candidates: int) -> None:
    for seed in range(3):
        given_round = random_round(vocabulary=5, depths=3, seed=seed, uncorrected=uncorrected)
        scorer = MAKERS["conditional"](given_round, 4, candidates)
        for depth in range(3):
            base = given_round.base_logits[depth].tolist()
            for path in itertools.product(range(5), repeat=depth):
                expected = naive_children(base, naive_logits(given_round, path), 4, candidates)
                assert_same(listed(scorer, path), expected)


@pytest.mark.parametrize("candidates", [1, 3, None])
def test_the_greedy_path_scorer_corrects_along_the_greedy_path_only(candidates: int | None) -> None:
    for seed in range(5):
        given_round = random_round(vocabulary=5, depths=4, seed=seed)
        scorer = MAKERS["greedy path"](given_round, 5, candidates)
        conditional = MAKERS["conditional"](given_round, 5, candidates)
        greedy: tuple[int, ...] = ()
        for depth in range(4):
            base = given_round.base_logits[depth].tolist()
            expected = naive_children(base, naive_logits(given_round, greedy), 5, candidates)
            for path in [greedy, (0,) * depth, (4,) * depth]:
                assert_same(listed(scorer, path), expected)
            assert_same(listed(conditional, greedy), expected)
            greedy = (*greedy, expected[0][0])


def test_the_correction_matters_in_these_tests() -> None:
    """Without this the agreements above could be those of a head that corrects nothing."""
    given_round = random_round(vocabulary=5, depths=3, seed=1)
    trees = [[listed(make(given_round, 5, None), (p, q)) for p in (0, 1) for q in (0, 1)] for make in MAKERS.values()]
    marginal, greedy_path, conditional = ([[t for t, _ in kids] for kids in tree] for tree in trees)
    assert all(kids == marginal[0] for kids in marginal) and all(kids == greedy_path[0] for kids in greedy_path)
    assert len({tuple(kids) for kids in conditional}) > 1
    assert marginal[0] != greedy_path[0]


@all_scorers
@pytest.mark.parametrize("candidates", [1, 2, 5, 9, None])
def test_children_of_the_candidates_sum_to_one_and_descend(make: Maker, candidates: int | None) -> None:
    scorer = make(random_round(vocabulary=5, depths=3, seed=2), 5, candidates)
    for path in [(), (3,), (1, 4)]:
        log_probs = torch.tensor([score for _, score in listed(scorer, path)])
        assert len(log_probs) == min(5, candidates or 5)
        assert float(log_probs.exp().sum()) == pytest.approx(1.0, abs=1e-12)
        assert (log_probs <= 0).all() and (log_probs.diff() <= 0).all()


@all_scorers
@pytest.mark.parametrize("vocabulary", [1, 5])
def test_as_many_candidates_as_the_vocabulary_is_no_restriction(make: Maker, vocabulary: int) -> None:
    given_round = random_round(vocabulary, depths=3, seed=3)
    whole, all_of_it, more = (make(given_round, vocabulary, m) for m in (None, vocabulary, vocabulary + 1))
    for path in [(), (0,), (0, vocabulary - 1)]:
        assert listed(whole, path) == listed(all_of_it, path) == listed(more, path)


@all_scorers
def test_a_batch_of_lanes_scores_like_single_lanes(make: Maker) -> None:
    scorer = make(random_round(vocabulary=6, depths=3, seed=4), 4, 5)
    paths = [(0, 1), (5, 5), (2, 0)]
    states = torch.cat([state_after(scorer, path) for path in paths])
    children = scorer.children(3, states)
    assert children.tokens.shape == children.log_probs.shape == (3, 4)
    for lane, path in enumerate(paths):
        pairs = zip(children.tokens[lane].tolist(), children.log_probs[lane].tolist(), strict=True)
        assert_same(list(pairs), listed(scorer, path))
    moved = scorer.advance(states, torch.tensor([1, 2, 3]))
    alone = [scorer.advance(states[i : i + 1], torch.tensor([i + 1])) for i in range(3)]
    assert torch.allclose(moved, torch.cat(alone), atol=1e-12) and moved.shape == states.shape


@all_scorers
def test_a_round_of_no_depths_has_a_root_and_nothing_else(make: Maker) -> None:
    given_round = random_round(vocabulary=4, depths=0, seed=0)
    for candidates in (None, 2):
        scorer = make(given_round, 3, candidates)
        assert scorer.horizon == 0 and scorer.root().shape[0] == 1


def test_the_state_of_a_scorer_that_remembers_nothing_is_empty() -> None:
    scorer = MarginalScorer(torch.zeros(2, 3), 3)
    assert scorer.root().shape == (1, 0)
    assert scorer.advance(torch.zeros(1, 0), torch.tensor([0, 1, 2])).shape == (3, 0)


@all_scorers
def test_half_precision_is_scored_in_float32_and_float64_stays(make: Maker) -> None:
    exact = make(random_round(vocabulary=6, depths=3, seed=5), 6, 4)
    assert exact.children(1, exact.root()).log_probs.dtype == torch.float64
    for candidates in (4, None):
        given_round = random_round(vocabulary=6, depths=3, seed=5).to(torch.bfloat16)
        half = make(given_round, 6, candidates)
        wide = make(given_round.to(torch.float32), 6, candidates)  # the same bf16 numbers, exact arithmetic
        for path in [(), (2,), (2, 3)]:
            scored = half.children(len(path) + 1, state_after(half, path))
            assert scored.log_probs.dtype == torch.float32
            close = dict(listed(wide, path))
            assert all(abs(close[token] - score) < 0.1 for token, score in listed(half, path))


def test_a_bf16_head_is_rounded_no_further_than_its_own_projections() -> None:
    given_round = random_round(vocabulary=6, depths=2, seed=8, uncorrected=0).to(torch.bfloat16)
    scorer, head = MAKERS["conditional"](given_round, 4, 4), given_round.head
    for depth, path in [(1, ()), (2, (3,))]:
        state = state_after(scorer, path)
        projected = head.project_hidden(given_round.hidden)[depth - 1].double() + head.project_states(state).double()
        correction = torch.nn.functional.silu(projected) @ head.w2.weight.double().T
        base = given_round.base_logits[depth - 1].double()
        expected = naive_children(base.tolist(), (base + correction[0]).tolist(), 4, 4)
        got = listed(scorer, path)
        assert [token for token, _ in got] == [token for token, _ in expected]
        assert [score for _, score in got] == pytest.approx([score for _, score in expected], abs=1e-5)


def test_equal_bf16_logits_rank_by_token_id() -> None:
    logits = torch.tensor([[1.0, 2.0, 1.0, 2.0, 1.0, 2.0]], dtype=torch.bfloat16)
    assert [token for token, _ in listed(MarginalScorer(logits, 4), ())] == [1, 3, 5, 0]
    assert [token for token, _ in listed(MarginalScorer(logits, 4, candidates=4), ())] == [1, 3, 5, 0]


@pytest.mark.parametrize("candidates", [3, None])
def test_what_depends_on_no_path_is_computed_once_a_round(candidates: int | None) -> None:
    given_round = random_round(vocabulary=6, depths=3, seed=6)
    scorer = ConditionalScorer(given_round.head, given_round.hidden, given_round.base_logits, 0, 4, candidates)
    for path in [(), (1,), (2,), (1, 2)]:
        listed(scorer, path)
    assert given_round.head.calls["project_hidden"] == 1
    shared = scorer.correction.rows.data_ptr() == given_round.head.output_weight.data_ptr()
    assert shared == (candidates is None), "the whole vocabulary is neither gathered nor copied"


@all_scorers
def test_bad_settings_are_refused(make: Maker) -> None:
    given_round = random_round(vocabulary=4, depths=2, seed=0)
    for candidates in (0, -1):
        with pytest.raises(InputError, match="candidates"):
            make(given_round, 2, candidates)
    with pytest.raises(InputError, match="child cap"):
        make(given_round, -1, None)
    given_round.base_logits = given_round.base_logits[None]
    with pytest.raises(InputError, match="one row a depth"):
        make(given_round, 2, None)


@pytest.mark.parametrize("name", ["greedy path", "conditional"])
def test_hidden_rows_and_logits_must_pair_up(name: str) -> None:
    """One row too many is the shift that no shape reveals later."""
    given_round = random_round(vocabulary=4, depths=3, seed=0)
    given_round.base_logits = given_round.base_logits[1:]
    with pytest.raises(InputError, match="3 hidden rows for 2 rows"):
        MAKERS[name](given_round, 2, None)
