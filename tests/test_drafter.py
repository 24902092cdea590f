"""The drafter against a second implementation of backbone and head: loops, plain formulas, no cache."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from toy_models import cached_model, drafter_config, random_drafter, randomise, target_of, tiny_model

from dominotree_lite.drafter import (
    ContextCache,
    DominoConfig,
    DominoHead,
    Drafter,
    DrafterConfig,
    DraftModel,
)
from dominotree_lite.errors import InputError
from dominotree_lite.scoring import ConditionalScorer
from dominotree_lite.target import Target

EPSILON, THETA = 1e-6, 500.0
both_kinds = pytest.mark.parametrize("kind", ["dflash", "domino"])
both_shifts = pytest.mark.parametrize("shift", [False, True], ids=["plain", "shift"])


# --- The second implementation -----------------------------------------------------------------------------------


def norm(row: Tensor, weight: Tensor) -> Tensor:
    return row / ((row * row).mean() + EPSILON).sqrt() * weight


def turned(row: Tensor, position: int) -> Tensor:
    """RoPE of one head's row: the pair (i, i + half) turns by position * theta^(-2i / size)."""
    half, out = len(row) // 2, row.clone()
    for i in range(half):
        angle = torch.tensor(position * THETA ** (-2 * i / len(row)), dtype=torch.float64)
        x, y = row[i], row[i + half]
        out[i] = x * angle.cos() - y * angle.sin()
        out[i + half] = y * angle.cos() + x * angle.sin()
    return out


def naive_hidden(weights: dict[str, Tensor], config: DrafterConfig, features: Tensor, block: Tensor) -> Tensor:
    """Hidden rows [block, H] after context features [start, T * H], all computed from scratch."""
    backbone, start = config.backbone, len(features)
    size, groups = backbone.head_dim, backbone.num_attention_heads // backbone.num_key_value_heads
    context = [norm(weights["fc.weight"] @ row, weights["hidden_norm.weight"]) for row in features]
    rows = list(block)
    for layer in range(backbone.num_hidden_layers):
        w = {
            key.removeprefix(f"layers.{layer}."): value
            for key, value in weights.items()
            if key.startswith(f"layers.{layer}.")
        }
        normed = [norm(row, w["input_layernorm.weight"]) for row in rows]
        keys, values = [], []  # of context and block, a list of kv heads each
        for position, row in enumerate([*context, *normed]):
            key = (w["self_attn.k_proj.weight"] @ row).view(-1, size)
            keys.append([turned(norm(head, w["self_attn.k_norm.weight"]), position) for head in key])
            values.append((w["self_attn.v_proj.weight"] @ row).view(-1, size))
        for slot, row in enumerate(normed):
            query, out = (w["self_attn.q_proj.weight"] @ row).view(-1, size), []
            for number, head in enumerate(query):
                q = turned(norm(head, w["self_attn.q_norm.weight"]), start + slot)
                scores = torch.stack([q @ key[number // groups] for key in keys]) / size**0.5
                masses = (scores - scores.max()).exp()
                mixed = sum(m * v[number // groups] for m, v in zip(masses, values, strict=True))
                out.append(mixed / masses.sum())
            rows[slot] = rows[slot] + w["self_attn.o_proj.weight"] @ torch.cat(out)
            x = norm(rows[slot], w["post_attention_layernorm.weight"])
            gate, up = w["mlp.gate_proj.weight"] @ x, w["mlp.up_proj.weight"] @ x
            rows[slot] = rows[slot] + w["mlp.down_proj.weight"] @ (gate * gate.sigmoid() * up)
    return torch.stack([norm(row, weights["norm.weight"]) for row in rows])


def naive_gru(weights: dict[str, Tensor], inputs: Sequence[Tensor]) -> Tensor:
    """The state after these inputs, gates in the order r, z, n, no biases, from zeros."""
    w_in, w_state = weights["prefix_gru.weight_ih_l0"], weights["prefix_gru.weight_hh_l0"]
    width = w_state.shape[1]
    state = torch.zeros(width, dtype=w_in.dtype)
    for x in inputs:
        r_in, z_in, n_in = (w_in @ x).split(width)
        r_state, z_state, n_state = (w_state @ state).split(width)
        reset, update = (r_in + r_state).sigmoid(), (z_in + z_state).sigmoid()
        state = (1 - update) * (n_in + reset * n_state).tanh() + update * state
    return state


def block_of(target: Target, config: DrafterConfig, anchor: int) -> Tensor:
    ids = [anchor] + [config.mask_token_id] * (config.block_size - 1)
    return target.embedding.weight[ids]


def weights_of(drafter: Drafter) -> dict[str, Tensor]:
    return dict(drafter.model.named_parameters())


@pytest.fixture(scope="module")
def target() -> Target:
    return target_of(tiny_model("qwen3", tied=True, dtype=torch.float64))


def some_features(count: int, seed: int = 0) -> Tensor:
    return torch.tensor(np.random.default_rng(seed).normal(size=(count, 64)) * 3)


# --- Backbone ----------------------------------------------------------------------------------------------------


@both_kinds
@both_shifts
def test_rounds_over_a_kept_cache_equal_the_naive_backbone_from_scratch(target: Target, kind: str, shift: bool) -> None:
    drafter = random_drafter(target, kind, shift, seed=3)
    features, cache, start = some_features(40), ContextCache(), 0
    for new, anchor in ((7, 4), (1, 0), (6, 9), (0, 11), (12, 49)):
        draft = drafter.draft(anchor, features[start : start + new], cache)
        start += new
        assert len(cache) == start  # the block's keys are gone
        rows = naive_hidden(
            weights_of(drafter), drafter.config, features[:start], block_of(target, drafter.config, anchor)
        )
        wanted = rows if shift else rows[1:]
        assert draft.hidden.shape == (drafter.horizon, 32) == (5 + shift, 32)
        # positions are turned in float32, as in transformers
        torch.testing.assert_close(draft.hidden, wanted, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(draft.base_logits, draft.hidden @ target.output.weight.T)


@both_shifts
def test_fewer_slots_are_the_first_of_all_slots(target: Target, shift: bool) -> None:
    drafter = random_drafter(target, "dflash", shift)
    whole = drafter.draft(3, some_features(4), ContextCache())
    for slots in (1, 2, 5, 99):
        part = drafter.draft(3, some_features(4), ContextCache(), slots)
        torch.testing.assert_close(part.hidden, whole.hidden[:slots])
        torch.testing.assert_close(part.base_logits, whole.base_logits[:slots])


@both_shifts
def test_another_anchor_changes_every_row(target: Target, shift: bool) -> None:
    drafter = random_drafter(target, "domino", shift)
    one = drafter.draft(3, some_features(4), ContextCache()).hidden
    other = drafter.draft(4, some_features(4), ContextCache()).hidden
    assert ((one - other).abs().amax(-1) > 1e-3).all()


def test_another_feature_of_any_committed_token_changes_every_row(target: Target) -> None:
    drafter = random_drafter(target, "dflash")
    plain = drafter.draft(3, some_features(5), ContextCache()).hidden
    for position in range(5):
        features = some_features(5)
        features[position] += 1
        changed = drafter.draft(3, features, ContextCache()).hidden
        assert ((plain - changed).abs().amax(-1) > 1e-6).all()


def test_a_block_may_stand_past_the_positions_of_its_config(target: Target) -> None:
    drafter = random_drafter(target, "dflash")
    drafter.config.backbone.max_position_embeddings = 4
    features = some_features(10)
    draft = drafter.draft(1, features, ContextCache())
    wanted = naive_hidden(weights_of(drafter), drafter.config, features, block_of(target, drafter.config, 1))
    torch.testing.assert_close(draft.hidden, wanted[1:], rtol=1e-5, atol=1e-5)


# --- Head --------------------------------------------------------------------------------------------------------


def test_the_gru_is_nn_gru_unrolled_and_its_gates_come_in_the_order_r_z_n(target: Target) -> None:
    drafter = random_drafter(target, "domino", True)
    head, tokens = drafter.head, [3, 3, 0, 49, 7]
    assert head is not None
    embedded = target.embedding.weight[tokens]
    states = head.initial()
    assert states.tolist() == [[0.0] * 5]
    for step, token in enumerate(tokens, start=1):
        states = head.advance(states, torch.tensor([token]))
        unrolled = drafter.model.prefix_gru(embedded[None, :step])[1][0]
        torch.testing.assert_close(states, unrolled)
        torch.testing.assert_close(states[0], naive_gru(weights_of(drafter), embedded[:step]))


def test_lanes_of_the_gru_do_not_touch(target: Target) -> None:
    head = random_drafter(target, "domino", True).head
    assert head is not None
    states = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    tokens = torch.tensor([1, 1, 8, 0])
    together = head.advance(states, tokens)
    for lane in range(4):
        torch.testing.assert_close(
            together[lane : lane + 1], head.advance(states[lane : lane + 1], tokens[lane : lane + 1])
        )


@both_shifts
@pytest.mark.parametrize("uncorrected", [0, 1, 2])
def test_corrected_logits_are_the_published_formula_on_whole_paths(
    target: Target, shift: bool, uncorrected: int
) -> None:
    drafter = random_drafter(target, "domino", shift, uncorrected=uncorrected, seed=5)
    weights, anchor = weights_of(drafter), 6
    draft = drafter.draft(anchor, some_features(3), ContextCache())
    assert drafter.head is not None
    scorer = ConditionalScorer(drafter.head, draft.hidden, draft.base_logits, anchor, child_cap=50)
    for path in ([], [4], [4, 4, 0], [9, 1, 2, 3]):
        logits = draft.base_logits[len(path)]
        if len(path) >= uncorrected:
            state = naive_gru(weights, target.embedding.weight[[anchor, *path]])
            x = weights["embed_proj.0.weight"] @ torch.cat([draft.hidden[len(path)], state])
            logits = logits + weights["embed_proj.2.weight"] @ (x * x.sigmoid())
        state_ = scorer.root()
        for token in path:
            state_ = scorer.advance(state_, torch.tensor([token]))
        got = scorer.children(len(path) + 1, state_)
        wanted = logits.log_softmax(-1)
        torch.testing.assert_close(got.log_probs[0], wanted[got.tokens[0]])
        assert sorted(got.tokens[0].tolist()) == list(range(50))
    # and the head is not small: another token comes first at some depth
    depths = range(1 + uncorrected, drafter.horizon + 1)
    corrected = [int(scorer.children(depth, scorer.root()).tokens[0, 0]) for depth in depths]
    assert corrected != [int(draft.base_logits[depth - 1].argmax()) for depth in depths]


def test_the_head_reads_the_embedding_it_was_given() -> None:
    target = target_of(cached_model("llama"))
    model = DraftModel(drafter_config(50, 32, "domino", True))
    randomise(model, 1)
    head = Drafter(model, target.embedding, target.output).head
    assert head is not None
    other = DominoHead(model, nn.Embedding.from_pretrained(torch.zeros(50, 32)))
    assert not torch.equal(head.advance(head.initial(), torch.tensor([3])), head.initial())
    assert torch.equal(other.advance(other.initial(), torch.tensor([3])), other.initial())
    assert torch.equal(head.output_weight, model.embed_proj[2].weight)


# --- Sizes and refusals ------------------------------------------------------------------------------------------


def test_parameter_names_and_shapes_are_the_published_ones() -> None:
    layer = {
        "self_attn.q_proj.weight": (32, 32),
        "self_attn.k_proj.weight": (16, 32),
        "self_attn.v_proj.weight": (16, 32),
        "self_attn.o_proj.weight": (32, 32),
        "self_attn.q_norm.weight": (8,),
        "self_attn.k_norm.weight": (8,),
        "mlp.gate_proj.weight": (24, 32),
        "mlp.up_proj.weight": (24, 32),
        "mlp.down_proj.weight": (32, 24),
        "input_layernorm.weight": (32,),
        "post_attention_layernorm.weight": (32,),
    }
    backbone = {"fc.weight": (32, 64), "hidden_norm.weight": (32,), "norm.weight": (32,)}
    backbone |= {f"layers.{i}.{key}": shape for i in range(2) for key, shape in layer.items()}
    head = {
        "prefix_gru.weight_ih_l0": (15, 32),
        "prefix_gru.weight_hh_l0": (15, 5),
        "embed_proj.0.weight": (7, 37),
        "embed_proj.2.weight": (50, 7),
    }
    for kind, wanted in (("domino", backbone | head), ("dflash", backbone)):
        tensors = DraftModel(drafter_config(50, 32, kind, False)).state_dict()
        assert {key: tuple(value.shape) for key, value in tensors.items()} == wanted


@pytest.mark.parametrize(("shift", "horizon"), [(False, 15), (True, 16)])
def test_the_horizon_counts_the_slots_that_predict(shift: bool, horizon: int) -> None:
    assert drafter_config(50, 32, "domino", shift, block=16).horizon == horizon


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target_layer_ids": ()}, "target_layer_ids"),
        ({"target_layer_ids": (3, 1)}, "ascending"),
        ({"target_layer_ids": (1, 1)}, "ascending"),
        ({"target_layer_ids": (-1, 1)}, "ascending"),
        ({"block_size": 1}, "block_size must be at least 2"),
        ({"mask_token_id": 50}, "outside the embedding of 50 rows"),
        ({"mask_token_id": -1}, "outside the embedding"),
    ],
)
def test_an_impossible_drafter_is_refused(changes: dict[str, object], words: str) -> None:
    given = drafter_config(50, 32, "dflash", False)
    fields = {name: getattr(given, name) for name in DrafterConfig.__dataclass_fields__}
    with pytest.raises(InputError, match=words):
        DrafterConfig(**{**fields, **changes})


@pytest.mark.parametrize("sizes", [(0, 5, 1), (7, 0, 1), (7, 5, -1)])
def test_an_impossible_head_is_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(InputError, match="correction head"):
        DominoConfig(*sizes)


def test_a_dflash_drafter_has_no_head() -> None:
    target = target_of(cached_model())
    drafter = random_drafter(target, "dflash")
    assert drafter.head is None and drafter.kind == "dflash"
    with pytest.raises(InputError, match="no correction head"):
        DominoHead(drafter.model, target.embedding)
