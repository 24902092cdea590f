"""The graph engine against the eager one: the same rounds. On a CPU its stages run uncaptured."""

import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from gpu import devices
from test_costs import COSTS
from toy_models import KINDS, byte_tokenizer, random_drafter, target_of, tiny_model

from dominotree_lite.cuda.accept import accept, draws_of
from dominotree_lite.cuda.store import Store, bucket
from dominotree_lite.cuda.sweep import Swept
from dominotree_lite.decode import Result, decode
from dominotree_lite.drafter import Drafter
from dominotree_lite.errors import InputError
from dominotree_lite.methods import Settings
from dominotree_lite.target import Target
from dominotree_lite.tree import DraftTree
from dominotree_lite.verify import Sampling, target_draws, walk

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def models(device: str, family: str, kind: str | None, dtype: torch.dtype, **options: int) -> tuple[Target, Drafter]:
    """Ten tokens only, so that a drafter which knows nothing is often right."""
    target = target_of(tiny_model(family, 10, dtype=dtype).to(device))
    return target, random_drafter(target, kind or "dflash", shift=bool(options.pop("shift", 0)), **options)


def both(
    prompt: object, target: Target, drafter: Drafter | None, settings: Settings, caplog: pytest.LogCaptureFixture
) -> tuple[Result, Result]:
    """Eager and graph; nothing was decoded eagerly in the graph engine's place."""
    results = [decode(prompt, target, drafter, replace(settings, engine=e)) for e in ("eager", "graph")]  # type: ignore[arg-type]
    assert not caplog.records
    return results[0], results[1]


def assert_same_rounds(ours: Result, theirs: Result) -> None:
    assert ours.token_ids == theirs.token_ids and ours.text == theirs.text
    assert len(ours.rounds) == len(theirs.rounds)
    for one, other in zip(ours.rounds, theirs.rounds, strict=True):
        for name in ("start", "accepted", "bonus", "tokens"):
            assert getattr(one, name) == getattr(other, name)
        assert one.tree.tokens.tolist() == other.tree.tokens.tolist()
        assert one.tree.parents.tolist() == other.tree.parents.tolist()
        assert one.tree.log_probs == pytest.approx(other.tree.log_probs, abs=1e-9)


@devices
@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("method", KINDS)
def test_every_method_runs_the_eager_rounds(
    device: str, family: str, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    target, drafter = models(device, family, KINDS[method], torch.float64)
    settings = Settings(method, budget=14, candidates=7, max_new_tokens=40)
    eager, graph = both(PROMPT, target, drafter, settings, caplog)
    assert_same_rounds(graph, eager)
    if method != "ar":
        assert any(one.accepted for one in graph.rounds)


@devices
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_token_ids_in_single_precision(device: str, family: str, caplog: pytest.LogCaptureFixture) -> None:
    target, drafter = models(device, family, "domino", torch.float32)
    for settings in (Settings(budget=20), Settings("ar"), Settings("domino")):
        eager, graph = both(PROMPT, target, drafter, replace(settings, max_new_tokens=60), caplog)
        assert graph.token_ids == eager.token_ids


@devices
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("shift", [0, 1])
def test_shifted_labels_few_slots_and_both_kinds_of_attention(
    device: str, shift: int, attention: str, caplog: pytest.LogCaptureFixture
) -> None:
    target = target_of(tiny_model("llama", 10, dtype=torch.float64, attention=attention).to(device))
    drafter = random_drafter(target, "domino", shift=bool(shift), uncorrected=shift)
    for slots in (None, 1, 3):
        eager, graph = both(PROMPT, target, drafter, Settings(budget=9, slots=slots, max_new_tokens=25), caplog)
        assert_same_rounds(graph, eager)


@devices
def test_one_engine_serves_prompts_of_all_lengths(device: str, caplog: pytest.LogCaptureFixture) -> None:
    """Longer ones than the places there were, then short ones again, and a context that changes its bucket."""
    target, drafter = models(device, "qwen3", "domino", torch.float64)
    chance = np.random.default_rng(0)
    for length in (1, 2, 230, 400, 3, 7):
        prompt = chance.integers(0, 10, length).tolist()
        eager, graph = both(prompt, target, drafter, Settings(budget=11, max_new_tokens=30), caplog)
        assert_same_rounds(graph, eager)


@devices
@pytest.mark.parametrize("budget", [0, 1, 2, 60])
def test_small_budgets_and_more_nodes_than_there_are(
    device: str, budget: int, caplog: pytest.LogCaptureFixture
) -> None:
    target = target_of(tiny_model("llama", 3, dtype=torch.float64).to(device))
    drafter = random_drafter(target, "domino", block=3)
    settings = Settings(budget=budget, candidates=None, max_new_tokens=20)
    eager, graph = both([1, 2], target, drafter, settings, caplog)
    assert_same_rounds(graph, eager)


@devices
def test_texts_end_where_the_eager_ones_end(device: str, caplog: pytest.LogCaptureFixture) -> None:
    target, drafter = models(device, "llama", "domino", torch.float64)
    plain = decode(PROMPT, target, None, Settings("ar", max_new_tokens=30)).token_ids
    for limit in range(6):
        eager, graph = both(PROMPT, target, drafter, Settings(budget=12, max_new_tokens=limit), caplog)
        assert graph.token_ids == eager.token_ids == plain[:limit]
    for eos in set(plain):
        ending = target_of(target.model, eos=eos)
        own = random_drafter(ending, "domino")
        eager, graph = both(PROMPT, ending, own, Settings(budget=12, max_new_tokens=30), caplog)
        assert graph.token_ids == eager.token_ids == plain[: plain.index(eos) + 1]
    stop = Settings(budget=12, max_new_tokens=30, stop=(f"{plain[6]} {plain[7]}",))
    eager, graph = both(PROMPT, target, drafter, stop, caplog)
    assert graph.token_ids == eager.token_ids and graph.text == eager.text


@devices
def test_the_last_positions_are_used_and_none_beyond(device: str, caplog: pytest.LogCaptureFixture) -> None:
    target = target_of(tiny_model("llama", 10, dtype=torch.float64, positions=40).to(device))
    drafter = random_drafter(target, "domino")
    eager, graph = both(PROMPT, target, drafter, Settings(budget=12, max_new_tokens=100), caplog)
    assert_same_rounds(graph, eager)
    assert len(PROMPT) + len(graph.token_ids) == 41


@devices
def test_turns_of_a_conversation(device: str, caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_model("llama", 258, dtype=torch.float64).to(device)
    target = target_of(model, tokenizer=byte_tokenizer(chat=True))
    drafter = random_drafter(target, "domino")
    eager, graph = both(["Hi", "and?"], target, drafter, Settings(budget=30, max_new_tokens=12), caplog)
    assert_same_rounds(graph, eager)


# --- Chance ------------------------------------------------------------------------------------------------------


@devices
def test_sampled_texts_depend_on_the_seed_alone(device: str, caplog: pytest.LogCaptureFixture) -> None:
    target, drafter = models(device, "llama", "domino", torch.float64)
    settings = Settings(budget=12, sampling=Sampling(1.0), max_new_tokens=25, engine="graph")
    texts = [decode(PROMPT, target, drafter, replace(settings, seed=seed)).token_ids for seed in (1, 2, 1)]
    assert texts[0] == texts[2] != texts[1]
    surest = replace(settings, sampling=Sampling(1.0, top_k=1))
    greedy = decode(PROMPT, target, drafter, replace(settings, sampling=Sampling()))
    assert decode(PROMPT, target, drafter, surest).token_ids == greedy.token_ids
    assert not caplog.records


@devices
def test_draws_follow_the_law_of_the_sampling(device: str) -> None:
    logits = torch.tensor([[0.0, 1.0, -1.0, 0.5], [2.0, 0.0, 0.0, -9.0]], dtype=torch.float64, device=device)
    for sampling in (Sampling(1.0), Sampling(0.6), Sampling(1.5, top_k=2), Sampling(1.0, top_p=0.7)):
        draw = draws_of(sampling, torch.Generator(device).manual_seed(0))
        drawn = torch.stack([draw(logits) for _ in range(4000)])  # [4000, 2]
        shares = torch.stack([(drawn == token).double().mean(0) for token in range(4)], dim=1)
        expected = sampling.probabilities(logits)
        assert (shares[expected == 0] == 0).all()
        assert (shares - expected).abs().max() < 0.035  # four standard deviations of a share


@devices
def test_the_walk_is_the_hosts_on_random_trees(device: str) -> None:
    chance = np.random.default_rng(0)
    accepted = 0
    for size in [*range(1, 40)] * 3:
        tree = random_ranked_tree(chance, size)
        draws = chance.integers(0, 4, size + 1)
        swept, visible = on_device(tree, size + 3, device)  # three places that nothing fills
        padded = torch.tensor([*draws, *chance.integers(0, 4, 3)], device=device)
        found = accept(swept, visible, padded)
        expected = walk(tree, target_draws_of(draws))
        assert int(found.count) == len(expected.nodes) and int(found.bonus) == expected.bonus
        assert found.path[: int(found.count) + 1].tolist() == [0, *expected.nodes]
        accepted += len(expected.nodes)
    assert accepted > 40


def random_ranked_tree(chance: np.random.Generator, size: int) -> DraftTree:
    tokens, parents, depths, scores = [0], [-1], [0], [0.0]
    while len(tokens) <= size:
        parent, token = int(chance.integers(len(tokens))), int(chance.integers(4))
        if depths[parent] < 6 and (parent, token) not in zip(parents, tokens, strict=True):
            tokens.append(token)
            parents.append(parent)
            depths.append(depths[parent] + 1)
            scores.append(scores[parent] - 0.5)
    return DraftTree.from_lists(tokens, parents, depths, scores)


def on_device(tree: DraftTree, places: int, device: str) -> tuple[Swept, torch.Tensor]:
    """The tree as a sweep leaves it, with empty places behind it that look like children of the root."""
    empty = places - len(tree)

    def column(values: object, filler: float) -> torch.Tensor:
        return torch.cat([torch.tensor(values), torch.tensor([filler] * empty)]).to(device)

    swept = Swept(
        column(tree.tokens, 1).long(),
        column(tree.parents.clip(0), 0).long(),
        column(tree.depths, 1).long(),
        column(tree.log_probs, -torch.inf),
        6,
    )
    return swept, swept.visible()


def target_draws_of(draws: np.ndarray) -> Callable[[int], int]:
    logits = torch.full((len(draws), 4), -1.0)
    logits[torch.arange(len(draws)), torch.tensor(draws)] = 1.0
    return target_draws(logits, Sampling(), torch.Generator())


# --- Places ------------------------------------------------------------------------------------------------------


@devices
def test_rows_move_as_if_all_at_once(device: str) -> None:
    one = torch.arange(2 * 8 * 3.0, device=device).view(1, 2, 8, 3)
    store = Store([(one, -one)], 8)
    store.fill([(one, -one)])
    store.move(torch.tensor([3, 5, 4], device=device), torch.tensor([3, 4, 5], device=device))
    keys, values = store.shown(0, 7)
    assert keys.equal(one[:, :, [0, 1, 2, 3, 5, 4, 6]]) and values.equal(-keys)


def test_buckets_hold_what_they_must_and_little_more() -> None:
    assert [bucket(n) for n in (1, 256, 257, 1089, 4096, 4161)] == [256, 256, 512, 1280, 4096, 4608]
    buckets = [bucket(n) for n in range(1, 9000)]
    assert buckets == sorted(buckets) and all(n <= b < n + n // 8 + 256 for n, b in enumerate(buckets, start=1))


# --- The seam ----------------------------------------------------------------------------------------------------


def test_what_has_no_fixed_shape_is_decoded_eagerly_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    target, drafter = models("cpu", "llama", "domino", torch.float64)
    adaptive = Settings("condadaptive", max_budget=9, costs=COSTS, max_new_tokens=20, engine="graph")
    results = [decode(PROMPT, target, drafter, own) for own in (adaptive, replace(adaptive, engine="eager"), adaptive)]
    assert_same_rounds(results[0], results[1])
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "condadaptive" in caplog.text


def test_an_engine_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="no engine 'fast'; there are eager, graph"):
        Settings(engine="fast")


def test_the_core_does_not_load_the_graph_engine() -> None:
    code = "import sys, dominotree_lite.decode, dominotree_lite.evaluate, dominotree_lite.cli; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "dominotree_lite.decode" in loaded
    assert not [name for name in loaded if name.startswith("dominotree_lite.cuda")]
