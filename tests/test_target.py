"""The target as prefill, verify and commit, against plain passes over whole texts of real tiny models."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor
from toy_models import byte_tokenizer, cached_model, plain_features, plain_logits, random_tree, target_of, tiny_model
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from dominotree_lite.errors import InputError
from dominotree_lite.packed import pack_linears
from dominotree_lite.target import Context, Forward, Target
from dominotree_lite.tree import DraftTree
from dominotree_lite.verify import tree_inputs

LAYERS = (0, 1)
# One-token against block passes round differently in float32 (about 1e-5 here); a wrong row is off by about 1.
CLOSE = {torch.float32: 2e-4, torch.float64: 1e-12}


class Session:
    """A target at work, and the text it should believe it has read."""

    def __init__(self, model: PreTrainedModel, prompt: Sequence[int]) -> None:
        self.target, self.context, self.text = target_of(model), Context(), list(prompt)
        self.last = self.target.prefill(self.context, self.text, LAYERS)

    def verify(self, tree: DraftTree) -> Forward:
        """One pass over a tree whose anchor follows the text."""
        inputs = tree_inputs(tree, len(self.text))
        visible = inputs.visible if len(tree) else None
        return self.target.verify(self.context, inputs.tokens, inputs.positions, visible, LAYERS)

    def check(self, tree: DraftTree) -> None:
        """Every node's row equals the last row of a plain pass over its own path."""
        got, model = self.verify(tree), self.target.model
        for node in range(len(tree) + 1):
            path = [*self.text, tree.anchor, *tree.path_tokens(node)]
            assert_close(got.logits[node], plain_logits(model, path)[-1])
            assert_close(got.features[node], plain_features(model, path, LAYERS)[-1])

    def commit(self, tree: DraftTree, nodes: Sequence[int]) -> None:
        with torch.inference_mode():
            self.context.commit([0, *nodes])
        self.text += [tree.anchor, *(int(tree.tokens[node]) for node in nodes)]
        assert self.context.length == len(self.text)


def assert_close(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=CLOSE[wanted.dtype], atol=CLOSE[wanted.dtype])


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize(("dtype", "attention"), [("float32", "sdpa"), ("float64", "sdpa"), ("float32", "eager")])
def test_every_row_of_a_random_tree_is_plain_decoding_round_after_round(
    family: str, tied: bool, dtype: str, attention: str
) -> None:
    chance = np.random.default_rng(len(family) + tied)
    model = tiny_model(family, tied=tied, dtype=getattr(torch, dtype), attention=attention)
    for length in (1, 2, 9):
        session = Session(model, chance.integers(50, size=length).tolist())
        for size in (0, 14, 3, 0, 1):
            tree = random_tree(chance, int(chance.integers(50)), size, 50)
            session.check(tree)
            session.commit(tree, tree.path(int(chance.integers(size + 1))))


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_rows_of_a_packed_target_are_those_of_the_plain_model(family: str) -> None:
    plain, packed = (tiny_model(family, tied=True) for _ in range(2))
    if not pack_linears(packed):
        pytest.skip("this PyTorch cannot pack linear layers")
    chance, text = np.random.default_rng(2), [3, 9, 9]
    target, context = target_of(packed), Context()
    target.prefill(context, text)
    for size in (20, 1, 40):
        tree = random_tree(chance, 7, size, 50)
        inputs = tree_inputs(tree, len(text))
        got = target.verify(context, inputs.tokens, inputs.positions, inputs.visible, LAYERS)
        for node in range(size + 1):
            path = [*text, 7, *tree.path_tokens(node)]
            assert_close(got.logits[node], plain_logits(plain, path)[-1])
            assert_close(got.features[node], plain_features(plain, path, LAYERS)[-1])
        with torch.inference_mode():
            context.commit([0, *tree.path(size)])
        text += [7, *tree.path_tokens(size)]


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize(
    "nodes",
    [[], [2], [3], [2, 6], [3, 7], [1, 4], [2, 6, 9], [2, 6, 10]],
    ids=lambda nodes: "-".join(map(str, nodes)) or "none",
)
def test_the_round_after_committing_later_siblings_is_plain_decoding(family: str, nodes: list[int]) -> None:
    tree = DraftTree.from_lists(  # three children, then [4], [5, 6], [7], and three below 6
        [4, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20],
        [-1, 0, 0, 0, 1, 2, 2, 3, 6, 6, 6],
        [0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3],
        [0.0, -1, -1, -1, -2, -2, -2, -2, -3, -3, -3],
    )
    assert nodes == (tree.path(nodes[-1]) if nodes else [])
    session = Session(cached_model(family), [7, 30, 2, 2])
    for _ in range(2):
        session.verify(tree)
        session.commit(tree, nodes)
    session.check(random_tree(np.random.default_rng(0), 5, 6, 50))


def test_a_passed_over_node_is_invisible() -> None:
    chance = np.random.default_rng(4)
    tree = random_tree(chance, 3, 20, 50)
    session = Session(tiny_model(dtype=torch.float64), [1, 2, 3])
    inputs = tree_inputs(tree, 3)
    clean = session.verify(tree)
    for poisoned in range(21):
        tokens = inputs.tokens.clone()
        tokens[poisoned] = (tokens[poisoned] + 7) % 50
        with torch.inference_mode():
            session.context.commit([])  # forget the last pass
        dirty = session.target.verify(session.context, tokens, inputs.positions, inputs.visible, LAYERS)
        sees = inputs.visible[:, poisoned]
        same = torch.isclose(clean.logits, dirty.logits, rtol=0, atol=1e-12).all(-1)
        assert torch.equal(same, ~sees)


def test_no_mask_is_left_over_from_a_bushy_round() -> None:
    session = Session(cached_model("qwen3"), [5, 6])
    bushy = random_tree(np.random.default_rng(5), 9, 60, 50)
    session.check(bushy)
    session.commit(bushy, bushy.path(60))
    for anchor in (3, 4):
        root = DraftTree.root_only(anchor)
        session.check(root)
        session.commit(root, [])


def test_a_row_does_not_depend_on_how_many_nodes_ride_along() -> None:
    model = cached_model()
    session = Session(model, [8, 1, 1])
    wanted = plain_logits(model, [8, 1, 1, 6])[-1]
    for count in range(130):
        tree = random_tree(np.random.default_rng(count), 6, count, 50)
        with torch.inference_mode():
            session.context.commit([])  # forget the last pass
        assert_close(session.verify(tree).logits[0], wanted)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_prefill_hands_out_the_last_logits_and_all_features(family: str) -> None:
    model = cached_model(family)
    for prompt in ([3], [4, 4, 0, 1, 49]):
        session = Session(model, prompt)
        assert session.last.logits.shape == (1, 50)
        assert_close(session.last.logits[0], plain_logits(model, prompt)[-1])
        assert_close(session.last.features, plain_features(model, prompt, LAYERS))


def test_no_features_are_kept_where_none_are_asked_for() -> None:
    target, context = target_of(cached_model()), Context()
    assert target.prefill(context, [1, 2, 3]).features.shape == (3, 0)
    assert target.verify(context, torch.tensor([1]), torch.tensor([3]), None).features.shape == (1, 0)


def test_logits_of_a_half_precision_model_come_in_float32() -> None:
    target, context = target_of(tiny_model(dtype=torch.bfloat16)), Context()
    assert target.prefill(context, [1]).logits.dtype == torch.float32
    assert target_of(tiny_model(dtype=torch.float64)).prefill(Context(), [1]).logits.dtype == torch.float64


def test_features_for_training_are_those_of_decoding() -> None:
    model = cached_model("qwen3")
    target = target_of(model)
    rows = torch.tensor([[1, 2, 3, 4, 5], [9, 8, 7, 0, 0]])  # the second is padded on the right
    reading = target.read(rows, LAYERS)
    features, logits = reading.features, target.output(reading.final)
    assert_close(features[0], plain_features(model, [1, 2, 3, 4, 5], LAYERS))
    assert_close(features[1, :3], plain_features(model, [9, 8, 7], LAYERS))
    assert_close(logits[0], plain_logits(model, [1, 2, 3, 4, 5]))
    assert_close(logits[1, :3], plain_logits(model, [9, 8, 7]))


# --- Conversations -----------------------------------------------------------------------------------------------

DIALOGUE = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Ho"},
    {"role": "user", "content": "é"},
]


def test_a_conversation_goes_through_the_chat_template() -> None:
    tokenizer = byte_tokenizer(chat=True)
    ids = Target(tiny_model(vocabulary=258), tokenizer, "toy").encode(DIALOGUE)
    assert tokenizer.decode(ids) == "<s>user: Hi<|end|><s>assistant: Ho<|end|><s>user: é<|end|><s>assistant: "
    assert (ids.count(0), ids.count(1)) == (4, 3)  # special tokens, not their letters


def test_a_conversation_without_a_template_is_raw_text() -> None:
    tokenizer = byte_tokenizer()
    target = Target(tiny_model(vocabulary=258), tokenizer, "toy")
    assert tokenizer.decode(target.encode(DIALOGUE[:1])) == "Hi"
    assert tokenizer.decode(target.encode(DIALOGUE)) == "Hi\n\nHo\n\né"
    assert target.decode([0, *tokenizer("Hé")["input_ids"], 1]) == "Hé"


def test_a_target_without_a_tokenizer_takes_ids_only() -> None:
    target = target_of(cached_model())
    assert target.decode([3, 14]) == "3 14"
    with pytest.raises(InputError, match="no tokenizer: give token ids"):
        target.encode(DIALOGUE)


# --- What ends a text, and what is refused -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [(None, None, set()), (3, None, {3}), ([3, 4], 5, {3, 4}), (None, 5, {5}), (None, [5, 0], {5, 0}), (0, 5, {0})],
)
def test_every_eos_id_of_the_generation_config_counts(
    generation: int | list[int] | None, config: int | list[int] | None, expected: set[int]
) -> None:
    model = tiny_model()
    model.config.eos_token_id = config
    assert target_of(model, generation).eos_ids == expected


def refused_line(model: PreTrainedModel) -> str:
    with pytest.raises(InputError) as refused:
        target_of(model)
    assert "\n" not in str(refused.value)
    return str(refused.value)


SMALL = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2}


def test_sliding_windows_are_refused() -> None:
    kinds = ["full_attention", "sliding_attention"]
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64}
    qwen = Qwen3Config(**SMALL, **heads, use_sliding_window=True, sliding_window=4, layer_types=kinds)
    assert "sliding_attention" in refused_line(Qwen3ForCausalLM(qwen))
    mistral = MistralConfig(**SMALL, **heads, sliding_window=4)
    assert "sliding" in refused_line(MistralForCausalLM(mistral))
    wide = MistralConfig(**SMALL, **heads, sliding_window=64, max_position_embeddings=64)
    assert target_of(MistralForCausalLM(wide)).max_positions == 64  # a window as long as the text is none
    none = MistralConfig(**SMALL, **heads, sliding_window=None)
    assert target_of(MistralForCausalLM(none)).num_layers == 2


def test_models_that_cannot_be_told_positions_are_refused() -> None:
    bloom = BloomForCausalLM(BloomConfig(vocab_size=50, hidden_size=32, n_layer=2, n_head=4))
    assert "position" in refused_line(bloom)


def test_attention_that_ignores_a_mask_is_refused() -> None:
    model = tiny_model()
    model.config._attn_implementation_internal = "flash_attention_2"
    assert "flash_attention_2" in refused_line(model)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([], "empty"),
        ([1] * 65, "65 tokens.*64 positions"),
        ([50], "outside the vocabulary of 50"),
        ([3, -1], "outside the vocabulary"),
    ],
)
def test_a_prompt_that_cannot_be_read_is_refused_in_one_line(prompt: list[int], words: str) -> None:
    target = target_of(tiny_model(positions=64))
    with pytest.raises(InputError, match=words) as refused:
        target.prefill(Context(), prompt)
    assert "\n" not in str(refused.value)
