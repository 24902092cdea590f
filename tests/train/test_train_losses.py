"""Teacher forcing against the drafter's own way of drafting, loss weights, and what a block must not see."""

import math
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from tiny_training import awake_model, matrix, random_rows, text_of, tiny_config
from torch import Tensor, nn

from dominotree_lite.drafter import ContextCache, Drafter, DrafterConfig, DraftModel
from dominotree_lite.target import Reading
from dominotree_lite.train.blocks import block_mask
from dominotree_lite.train.corpus import Batch, Batches
from dominotree_lite.train.losses import BlockLoss, LossConfig, accepted, fresh_model

VOCABULARY, HIDDEN, GAMMA = 11, 16, 3.0
LOSS = LossConfig(gamma=GAMMA)
LAYOUTS = {
    "domino": tiny_config(),
    "domino, all corrected": tiny_config(uncorrected=0),
    "domino, two uncorrected": tiny_config(uncorrected=2),
    "domino without shift": tiny_config(shift=False),
    "dflash": tiny_config("dflash", shift=False),
    "dflash with shift": tiny_config("dflash"),
}


@pytest.fixture(params=LAYOUTS)
def config(request: pytest.FixtureRequest) -> DrafterConfig:
    return LAYOUTS[request.param]


class Setting:
    """A drafter with everything around it, and one batch of three rows with four anchors each."""

    def __init__(
        self, config: DrafterConfig, vocabulary: int = VOCABULARY, anchors: int = 4, loss: LossConfig = LOSS
    ) -> None:
        self.config, self.model = config, awake_model(config)
        self.embedding, self.output = matrix(vocabulary, HIDDEN, 1), matrix(vocabulary, HIDDEN, 2)
        self.loss = BlockLoss(self.model, self.embedding, self.output, loss)
        self.blocks = self.loss.blocks
        rows = random_rows(3, vocabulary, seed=3)
        self.batch = Batches(text_of(rows, reply=2), 3, anchors, 0, "cpu")(0)
        self.features = torch.stack([matrix(64, config.feature_size, 4 + i) for i in range(3)])
        self.final = torch.stack([matrix(64, HIDDEN, 14 + i) for i in range(3)])

    def reading(self) -> Reading:
        return Reading(self.features, self.final)

    def drafter(self) -> Drafter:
        embedding = nn.Embedding.from_pretrained(self.embedding)
        output = nn.Linear(HIDDEN, len(self.output), bias=False, dtype=torch.float64)
        output.weight = nn.Parameter(self.output)
        return Drafter(self.model, embedding, output)

    def places(self) -> list[tuple[int, int, int]]:
        """(row, index among the row's anchors, position) of every block."""
        anchors = self.batch.anchors.tolist()
        return [(row, i, anchor) for row, own in enumerate(anchors) for i, anchor in enumerate(own)]

    def row(self, row: int) -> list[int]:
        return self.batch.ids[row, : int(self.batch.lengths[row])].tolist()

    def draft(self, row: int, anchor: int) -> tuple[Tensor, Tensor]:
        """Hidden rows and base logits as decoding gets them, the context read in two parts."""
        drafter, cache, ids = self.drafter(), ContextCache(), self.row(row)
        if anchor > 1:
            drafter.draft(ids[anchor // 2], self.features[row, : anchor // 2], cache)
        draft = drafter.draft(ids[anchor], self.features[row, len(cache) : anchor], cache)
        return draft.hidden, draft.base_logits

    def corrected(self, hidden: Tensor, base: Tensor, prefix: list[int]) -> Tensor:
        """Logits along a drafted prefix (anchor first), by the whole modules, depth by depth."""
        head, model = self.config.head, self.model
        if head is None:
            return base
        rows = []
        for depth in range(min(len(base), len(prefix))):
            states, _ = model.prefix_gru(self.embedding[prefix[: depth + 1]][None])
            change = model.embed_proj(torch.cat([hidden[depth], states[0, -1]]))
            rows.append(base[depth] + (change if depth >= head.pure_draft_prefix_len else 0))
        return torch.stack(rows)


def one_block(batch: Batch, row: int, anchor: int) -> Batch:
    return Batch(batch.ids[[row]], batch.lengths[[row]], torch.tensor([[anchor]]))


# --- what a block sees ----------------------------------------------------------------------------------


def test_block_mask_equals_its_definition() -> None:
    anchors, width, block = torch.tensor([[0, 3, 3], [5, 1, 2]]), 6, 4
    mask = block_mask(anchors, width, block)
    assert mask.shape == (2, 1, 12, 18) and mask.dtype == torch.bool
    for row in range(2):
        for query in range(12):
            for key in range(18):
                if key < width:
                    seen = key < anchors[row, query // block]
                else:
                    seen = (key - width) // block == query // block
                assert mask[row, 0, query, key] == seen


def test_rows_equal_those_of_drafting(config: DrafterConfig) -> None:
    setting = Setting(config)
    with torch.no_grad():
        rows = hidden_of(setting, setting.features, setting.batch)
        logits = setting.blocks.logits(rows, setting.blocks.tokens(setting.batch)[..., :-1])
    for row, i, anchor in setting.places():
        hidden, base = setting.draft(row, anchor)
        assert hidden.shape == (config.horizon, HIDDEN)
        torch.testing.assert_close(rows[row, i], hidden, rtol=0, atol=1e-12)
        prefix = setting.row(row)[anchor : anchor + config.horizon]
        expected = setting.corrected(hidden, base, prefix)
        torch.testing.assert_close(logits[row, i, : len(expected)], expected, rtol=0, atol=1e-11)


def losses_of(setting: Setting) -> dict[str, float]:
    """Base and corrected loss of the batch, slot by slot from drafts, by the formula in the papers."""
    sums = {"base": 0.0, "corrected": 0.0, "weight": 0.0}
    for row, _, anchor in setting.places():
        hidden, base = setting.draft(row, anchor)
        text = setting.row(row)[anchor:]
        corrected = setting.corrected(hidden, base, text[: len(base)])
        for slot, label in enumerate(text[1 : len(base) + 1]):
            weight = math.exp(-slot / GAMMA)
            sums["weight"] += weight
            for name, logits in (("base", base), ("corrected", corrected)):
                sums[name] -= weight * F.log_softmax(logits[slot], -1)[label].item()
    return {name: sums[name] / sums["weight"] for name in ("base", "corrected")}


@pytest.mark.parametrize("base_weight", [1.0, 0.3, 0.0])
def test_losses_equal_those_of_drafting(config: DrafterConfig, base_weight: float) -> None:
    setting = Setting(config, anchors=8)
    assert any(anchor + config.horizon >= len(setting.row(row)) for row, _, anchor in setting.places())
    found = setting.loss(setting.reading(), setting.batch, base_weight)
    expected = losses_of(setting)
    # the loss works in float32, as it does on a GPU
    assert found["base"].item() == pytest.approx(expected["base"], rel=1e-5)
    if config.head is None:
        assert found["loss"].item() == found["base"].item() and "corrected" not in found
        return
    assert found["corrected"].item() == pytest.approx(expected["corrected"], rel=1e-5)
    mixed = base_weight * expected["base"] + (1 - base_weight) * expected["corrected"]
    assert found["loss"].item() == pytest.approx(mixed, rel=1e-5)


def slots_of(setting: Setting) -> Iterator[tuple[int, float, Tensor, Tensor, Tensor, list[Tensor]]]:
    """Every slot inside its row: label, decay, the target's logits there, base and corrected logits, those before."""
    config = setting.loss.config
    for row, _, anchor in setting.places():
        hidden, base = setting.draft(row, anchor)
        text = setting.row(row)[anchor:]
        prefix = text[: len(base)]
        if config.prefix == "drafted":
            prefix = text[:1]
            while len(prefix) < len(base):
                prefix.append(int(setting.corrected(hidden, base, prefix)[-1].argmax()))
        corrected = setting.corrected(hidden, base, prefix)
        for slot, label in enumerate(text[1 : len(base) + 1]):
            teacher = setting.output @ setting.final[row, anchor + slot]
            decay = math.exp(-slot / config.gamma)
            yield label, decay, teacher, base[slot], corrected[slot], list(corrected[:slot])


def cross_entropy(logits: Tensor, label: int, teacher: Tensor, labels: str) -> float:
    log_probs = F.log_softmax(logits, -1)
    if labels == "soft":
        return -float((teacher.softmax(-1) * log_probs).sum())
    return -float(log_probs[int(teacher.argmax()) if labels == "argmax" else label])


VARIANTS = {
    "soft": LossConfig(gamma=GAMMA, labels="soft"),
    "argmax": LossConfig(gamma=GAMMA, labels="argmax"),
    "drafted": LossConfig(gamma=GAMMA, prefix="drafted"),
    "flat": LossConfig(gamma=math.inf),
}


@pytest.mark.parametrize("kind", ["domino", "domino, two uncorrected", "dflash"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_equal_their_formulas(variant: str, kind: str) -> None:
    loss = VARIANTS[variant]
    setting = Setting(LAYOUTS[kind], anchors=8, loss=loss)
    found = setting.loss(setting.reading(), setting.batch, 0.25)
    sums = torch.zeros(3, dtype=torch.float64)
    for label, decay, teacher, base, corrected, _ in slots_of(setting):
        pair = [cross_entropy(logits, label, teacher, loss.labels) for logits in (base, corrected)]
        sums += decay * torch.tensor([*pair, 1.0], dtype=torch.float64)
    expected_base, expected_corrected = (sums[:2] / sums[2]).tolist()
    assert found["base"].item() == pytest.approx(expected_base, rel=1e-5)
    if kind != "dflash":
        assert found["corrected"].item() == pytest.approx(expected_corrected, rel=1e-5)
        mixed = 0.25 * expected_base + 0.75 * expected_corrected
        assert found["loss"].item() == pytest.approx(mixed, rel=1e-5)


def test_reached_slots_weigh_as_much_as_the_drafter_trusts_what_is_before_them() -> None:
    setting = Setting(tiny_config(), anchors=8, loss=LossConfig(gamma=GAMMA, depth_weights="reached"))
    found = setting.loss(setting.reading(), setting.batch, 0.0)
    total = weights = 0.0
    texts = [setting.row(row)[anchor + 1 :] for row, _, anchor in setting.places()]
    labels = [text[: setting.config.horizon] for text in texts]
    slots = iter(slots_of(setting))
    for own in labels:
        for _ in own:
            label, decay, _, _, corrected, before = next(slots)
            trust = math.prod(float(F.softmax(x, -1)[token]) for x, token in zip(before, own, strict=False))
            total -= decay * trust * float(F.log_softmax(corrected, -1)[label])
            weights += decay * trust
    assert found["corrected"].item() == pytest.approx(total / weights, rel=1e-5)
    assert found["loss"].item() == found["corrected"].item()


def test_no_gradient_flows_through_the_choice_of_drafts_and_weights() -> None:
    setting = Setting(tiny_config(), loss=LossConfig(prefix="drafted", depth_weights="reached"))
    setting.loss(setting.reading(), setting.batch, 0.5)["loss"].backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in setting.model.parameters())


def test_at_full_base_weight_the_head_learns_nothing() -> None:
    setting = Setting(tiny_config())
    setting.loss(setting.reading(), setting.batch, 1.0)["loss"].backward()
    moved = {name: bool(p.grad.abs().max() > 0) for name, p in setting.model.named_parameters() if p.grad is not None}
    assert not any(moved[name] for name in moved if "prefix_gru" in name or "embed_proj" in name)
    assert all(moved[name] for name in moved if "prefix_gru" not in name and "embed_proj" not in name)


def test_target_matrices_are_neither_trained_nor_saved() -> None:
    setting = Setting(tiny_config())
    names = {name for name, _ in setting.loss.named_parameters()}
    assert names == {f"model.{name}" for name, _ in setting.model.named_parameters()}
    assert set(setting.model.state_dict()) == {name for name, _ in setting.model.named_parameters()}


def hidden_of(setting: Setting, features: Tensor, batch: Batch) -> Tensor:
    blocks = setting.blocks
    with torch.no_grad():
        return blocks.hidden(blocks.context(features), blocks.tokens(batch)[..., 0], batch.anchors)


def test_features_from_the_anchor_on_change_nothing(config: DrafterConfig) -> None:
    setting = Setting(config)
    for row, _, anchor in setting.places():
        batch, features = one_block(setting.batch, row, anchor), setting.features[[row]]
        poisoned = features.clone()
        poisoned[:, anchor:] = 1e3
        assert torch.equal(hidden_of(setting, features, batch), hidden_of(setting, poisoned, batch))
        final = setting.final[[row]]
        for name, value in setting.loss(Reading(features, final), batch, 0.5).items():
            assert value.item() == setting.loss(Reading(poisoned, final), batch, 0.5)[name].item()


def test_the_last_feature_before_the_anchor_matters(config: DrafterConfig) -> None:
    setting = Setting(config)
    row, _, anchor = setting.places()[0]
    batch, poisoned = one_block(setting.batch, row, anchor), setting.features[[row]].clone()
    poisoned[:, anchor - 1] += 1
    assert not torch.allclose(hidden_of(setting, setting.features[[row]], batch), hidden_of(setting, poisoned, batch))


def test_another_block_changes_nothing(config: DrafterConfig) -> None:
    setting = Setting(config)
    anchors = torch.tensor([[3, 3 + config.horizon + 1]])
    batch = Batch(setting.batch.ids[[0]], setting.batch.lengths[[0]], anchors)
    ids, moved = batch.ids.clone(), anchors.clone()
    ids[0, int(anchors[0, 1])] = (ids[0, int(anchors[0, 1])] + 1) % VOCABULARY
    moved[0, 1] -= 2
    features = setting.features[[0]]
    before = hidden_of(setting, features, batch)
    for other in (Batch(ids, batch.lengths, anchors), Batch(batch.ids, batch.lengths, moved)):
        after = hidden_of(setting, features, other)
        torch.testing.assert_close(after[:, 0], before[:, 0], rtol=0, atol=1e-12)
        assert not torch.allclose(after[:, 1], before[:, 1])


def test_tokens_inside_the_block_reach_no_hidden_row(config: DrafterConfig) -> None:
    """Slots after the anchor hold the mask: a row that saw its label would learn nothing of use."""
    setting = Setting(config)
    row, _, anchor = setting.places()[0]
    batch = one_block(setting.batch, row, anchor)
    ids = batch.ids.clone()
    ids[:, anchor + 1 :] = (ids[:, anchor + 1 :] + 1) % VOCABULARY
    other = Batch(ids, batch.lengths, batch.anchors)
    assert torch.equal(
        hidden_of(setting, setting.features[[row]], batch), hidden_of(setting, setting.features[[row]], other)
    )


# --- accepted length ------------------------------------------------------------------------------------


def rollout(setting: Setting, row: int, anchor: int) -> int:
    """Greedy drafts one after another, the head reading its own; how many the text confirms."""
    hidden, base = setting.draft(row, anchor)
    text, drafted = setting.row(row)[anchor:], [setting.row(row)[anchor]]
    for depth in range(setting.config.horizon):
        drafted.append(int(setting.corrected(hidden, base, drafted)[depth].argmax()))
    confirmed = 0
    while confirmed + 1 < min(len(text), len(drafted)) and drafted[confirmed + 1] == text[confirmed + 1]:
        confirmed += 1
    return confirmed


@pytest.mark.parametrize("kind", ["domino", "dflash"])
@pytest.mark.parametrize("shift", [True, False])
def test_accepted_equals_a_greedy_rollout(kind: str, shift: bool) -> None:
    setting = Setting(tiny_config(kind, shift, vocabulary=3), vocabulary=3, anchors=24)
    blocks, batch = setting.blocks, setting.batch
    tokens = blocks.tokens(batch)
    with torch.no_grad():
        logits = blocks.logits(hidden_of(setting, setting.features, batch), tokens[..., :-1])
    found = accepted(logits, tokens[..., 1:], blocks.inside(batch))
    assert setting.loss.measure(setting.reading(), batch)["tau"].item() == pytest.approx(
        1 + found.double().mean().item()
    )
    expected = [rollout(setting, row, anchor) for row, _, anchor in setting.places()]
    assert found.flatten().tolist() == expected
    assert {0, 1, 2} <= set(expected)


# --- the beginning --------------------------------------------------------------------------------------


def test_a_fresh_model_starts_at_its_base_and_depends_on_the_seed_alone() -> None:
    config = tiny_config()
    first, again, other = fresh_model(config, 7), fresh_model(config, 7), fresh_model(config, 8)
    assert isinstance(first, DraftModel)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.fc.weight, other.fc.weight)
    loss = BlockLoss(first.double(), matrix(VOCABULARY, HIDDEN, 1), matrix(VOCABULARY, HIDDEN, 2), LOSS)
    setting = Setting(config)
    found = loss(setting.reading(), setting.batch, 0.5)
    assert found["corrected"].item() == found["base"].item()
