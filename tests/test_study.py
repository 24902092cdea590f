"""Studies: sums, pairs and choices against the records, counted again by hand."""

from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np
import pytest
from made_records import RUN, evaluation, made

from dominotree_lite.errors import InputError
from dominotree_lite.intervals import Interval, pooled_ratio, pooled_tau, tau_difference
from dominotree_lite.records import BenchRecord, Machine, RecordSet
from dominotree_lite.report import (
    Chosen,
    acceptance,
    acceptance_table,
    inflation_table,
    paired_table,
    rejection_table,
    tables,
)
from dominotree_lite.study import (
    Cell,
    Prompt,
    Study,
    accepted,
    choose,
    halves,
    mean_times_faster,
    studies,
    tau,
    tau_above,
    times_faster,
)
from dominotree_lite.viz.bench import pictures

TREE, AR = Cell("dominotree", 16, 0.0), Cell("ar", None, 0.0)


@pytest.fixture(scope="module")
def study() -> Study:
    (found,) = studies(evaluation())
    return found


def of(cell: Cell, suite: str | None = None) -> list[BenchRecord]:
    """The records of a cell, read again."""
    wanted = (cell.variant, cell.budget, cell.temperature)
    records = [r for r in evaluation().records if (r.method, r.budget, r.temperature) == wanted]
    return [r for r in records if suite in (None, r.suite)]


def rate(records: list[BenchRecord]) -> float:
    return sum(r.tokens for r in records) / sum(r.seconds for r in records)


def test_tau_and_its_interval_are_those_of_the_records(study: Study) -> None:
    records, prompts = of(TREE, "code"), [p for p in study.prompts if p.suite == "code"]
    found = tau(study, TREE, prompts)
    assert found == pooled_tau([r.tokens for r in records], [r.rounds for r in records])
    # The same tokens in half as many rounds: then the difference is that of two ratios with one numerator.
    halved = [r.tokens // 2 for r in records]
    changes = [{"method": "domino", "budget": None, "rounds": n, "accepted": [n], "reached": [n]} for n in halved]
    twins = [replace(r, **change) for r, change in zip(records, changes, strict=True)]
    (pair,) = studies(RecordSet({"r1": RUN}, records + twins))
    wanted = tau_difference([r.tokens for r in records], [r.rounds for r in records], halved)
    assert tau_above(pair, TREE, Cell("domino", None, 0.0), pair.prompts) == wanted


def test_speed_is_the_ratio_of_pooled_rates(study: Study) -> None:
    found = times_faster(study, TREE, AR, study.prompts)
    assert found and found.low <= found.value <= found.high
    assert found.value == pytest.approx(rate(of(TREE)) / rate(of(AR)))
    assert times_faster(study, AR, AR, study.prompts) == Interval(1.0, 1.0, 1.0)
    mean = mean_times_faster(study, TREE, AR, study.prompts)
    suites = [rate(of(TREE, s)) / rate(of(AR, s)) for s in ("code", "talk")]
    assert mean and mean.value == pytest.approx(np.sqrt(np.prod(suites)))
    assert times_faster(study, TREE, None, study.prompts) is None


def test_seeds_of_a_conversation_stay_together() -> None:
    records = [made("dominotree", "code", name, 4, 1.0, seed) for name in "abc" for seed in (0, 1, 2)]
    (study,) = studies(RecordSet({"r1": RUN}, records))
    by_name = [[r for r in records if r.id == name] for name in "abc"]
    sums = [[sum(getattr(r, field) for r in own) for own in by_name] for field in ("tokens", "rounds")]
    assert tau(study, Cell("dominotree", 4, 1.0), study.prompts) == pooled_ratio(*sums)


def test_what_was_measured_on_fewer_prompts_is_compared_on_these() -> None:
    records = [r for r in evaluation().records if not (r.method == "ar" and r.id == "code-0")]
    (study,) = studies(RecordSet({"r1": RUN}, records))
    both = [r for r in of(TREE) if r.id != "code-0"]
    found = times_faster(study, TREE, AR, study.prompts)
    assert found and found.value == pytest.approx(rate(both) / rate([r for r in of(AR) if r.id != "code-0"]))


def test_halves_cut_every_suite_whatever_the_order(study: Study) -> None:
    both = halves(study)
    assert sorted([*both.choosing, *both.test]) == study.prompts
    for suite in study.suites:
        assert [sum(p.suite == suite for p in half) for half in (both.choosing, both.test)] == [3, 3]
    (turned,) = studies(RecordSet({"r1": RUN}, evaluation().records[::-1]))
    assert halves(turned) == both


def test_a_budget_is_chosen_by_speed_and_not_by_the_test_half(study: Study) -> None:
    both = halves(study)

    def fastest(prompts: Collection[Prompt]) -> int | None:
        ids = {p.id for p in prompts}
        cells = [Cell("dominotree", budget, 0.0) for budget in (4, 16, 64)]
        return max(cells, key=lambda c: rate([r for r in of(c) if r.id in ids])).budget

    found = choose(study, "dominotree", 0.0, both.choosing)
    assert found and found.budget == fastest(both.choosing)
    # Whatever the test half holds, the choice stays: there every other budget is made a hundred times as fast.
    test = {p.id for p in both.test}
    spoilt = [
        replace(r, seconds=r.seconds / 100) if r.id in test and r.budget != found.budget else r
        for r in evaluation().records
    ]
    (other,) = studies(RecordSet({"r1": RUN}, spoilt))
    assert choose(other, "dominotree", 0.0, both.choosing) == found
    assert choose(other, "dominotree", 0.0, both.test) != found  # control: this half would choose otherwise
    assert choose(study, "marginal", 0.5, both.test) is None


def test_choosing_on_the_test_half_never_looks_worse(study: Study) -> None:
    table = inflation_table(Chosen.on_half(study))
    assert [row[:2] for row in table.rows] == [[t, m] for t in ("0", "1") for m in ("marginal", "dominotree")]
    for row in table.rows:
        assert isinstance(row[6], Interval) and row[6].value >= 1 - 1e-12
        mean, so_chosen = row[8], row[9]
        assert isinstance(mean, Interval) and isinstance(so_chosen, float) and so_chosen >= mean.value - 1e-12
        if row[2] == row[4]:
            assert row[3] == row[5] and row[6].value == 1


def test_acceptance_by_depth_counts_rounds(study: Study) -> None:
    cell, half = Cell("domino", None, 0.0), halves(study).test
    kept = [n for r in of(cell) if r.id in {p.id for p in half} for n, c in enumerate(r.accepted) for _ in range(c)]
    assert accepted(study, cell, half) == np.bincount(kept).tolist()
    assert acceptance(study, cell, half) == pytest.approx([np.mean(np.array(kept) >= d) for d in range(1, 5)])


def test_depths_that_no_round_has_are_passed_over() -> None:
    records = [made("domino", "code", name) for name in "abcd"]
    padded = [replace(r, accepted=[*r.accepted, 0], reached=[*r.reached, 0, 0]) for r in records]
    (bare,), (longer,) = (studies(RecordSet({"r1": RUN}, own)) for own in (records, padded))
    assert acceptance_table(Chosen.on_half(longer)).rows == acceptance_table(Chosen.on_half(bare)).rows
    assert rejection_table(Chosen.on_half(longer)).rows == rejection_table(Chosen.on_half(bare)).rows


def test_pairs_leave_out_the_one_they_are_held_against(study: Study) -> None:
    table = paired_table(Chosen.on_half(study))
    assert {row[1] for row in table.rows} == {"ar", "domino", "marginal"}
    with pytest.raises(InputError, match="no method 'domno'"):
        paired_table(Chosen.on_half(study), "domno")


def test_losslessness_lists_what_parted(study: Study) -> None:
    *_, lossless, partings = tables(study)
    assert partings.rows == [["code", "code-0", "dominotree", 16, 17, -0.0001]]
    counted = {(row[0], row[1]): row[2:] for row in lossless.rows}
    assert counted["dominotree", 16] == [12, 11, 1, 0.0001]
    assert counted["dominotree", 64] == [12, 12, 0, None]


@pytest.mark.parametrize(
    "change",
    [
        lambda r: replace(r, dtype="bfloat16"),
        lambda r: replace(r, target="other"),
        lambda r: replace(r, max_new_tokens=65),
        lambda r: replace(r, run="r2"),  # another machine
    ],
)
def test_other_conditions_are_another_study(change: Callable[[BenchRecord], BenchRecord]) -> None:
    first, second = made("ar", "code", "a"), change(made("ar", "code", "b"))
    runs = {"r1": RUN, "r2": replace(RUN, run="r2", machine=Machine("arm", 4, None))}
    assert [len(one.prompts) for one in studies(RecordSet(runs, [first, second]))] == [1, 1]


def test_variants_are_named_by_what_tells_them_apart() -> None:
    tree = made("dominotree", "code", "a", 4)
    (study,) = studies(
        RecordSet({"r1": RUN}, [tree, replace(tree, candidates="full"), made("marginal", "code", "a", 4)])
    )
    assert study.variants == ["dominotree M=512", "dominotree M=full", "marginal"]


def test_variants_stand_side_by_side_whatever_the_order_of_records() -> None:
    """`ar` first, small numbers before large ones; others are held against the first of the preferred method."""
    trees = [replace(made("dominotree", "code", name, 4), candidates=m) for m in ("full", 512, 64) for name in "abcd"]
    rest = [made(method, "code", name) for method in ("domino", "ar") for name in "abcd"]
    (study,) = studies(RecordSet({"r1": RUN}, trees[:6] + rest + trees[6:]))
    assert study.variants == ["ar", "dominotree M=64", "dominotree M=512", "dominotree M=full", "domino"]
    table = paired_table(Chosen.on_half(study))
    assert "dominotree M=64" in table.caption and "dominotree M=64" not in {row[1] for row in table.rows}


def test_what_drafts_nothing_has_no_depths() -> None:
    """A peer's plain decoding is no `ar`, and rejects nothing either."""
    peer = [replace(made("ar", "code", name), method="hf-generate") for name in "abcd"]
    (study,) = studies(RecordSet({"r1": RUN}, [*peer, *(made("domino", "code", name) for name in "abcd")]))
    chosen = Chosen.on_half(study)
    assert [row[1] for row in rejection_table(chosen).rows] == ["domino"]
    assert [row[1] for row in acceptance_table(chosen).rows] == ["domino"]
    (panel,) = pictures(chosen)["acceptance-T0"].axes
    assert [line.get_label() for line in panel.get_lines()] == ["domino"]


def test_what_cannot_be_reported_is_told() -> None:
    with pytest.raises(InputError, match="no records"):
        studies(RecordSet({}, []))
    (study,) = studies(RecordSet({"r1": RUN}, [made("ar", "code", "a")]))
    with pytest.raises(InputError, match="every suite has one prompt"):
        tables(study)
