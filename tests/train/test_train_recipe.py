"""Which drafter a target gets: layers, sizes, and a mask token that never occurs in text."""

import itertools
import json
from pathlib import Path

import pytest
import torch
from tiny_training import END, SPARE, VOCABULARY, tiny_llama, tiny_qwen3, tiny_tokenizer
from tokenizers import AddedToken
from transformers import LlamaConfig, LlamaForCausalLM

from dominotree_lite.checkpoints import config_json, parse_config
from dominotree_lite.errors import InputError
from dominotree_lite.target import Target
from dominotree_lite.train.recipe import DrafterSizes, drafter_config, feature_layers, mask_token

SHIPPED = Path(__file__).parents[2] / "data" / "drafters"


def smollm2_shaped() -> Target:
    """SmolLM2-135M's layout, without its weights."""
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        return Target(LlamaForCausalLM(config), None, "smollm2-shaped")


@pytest.mark.parametrize("kind", ["domino", "dflash"])
def test_the_defaults_are_the_shipped_layout(kind: str) -> None:
    config = drafter_config(smollm2_shaped(), kind, mask_token_id=16)
    shipped = json.loads((SHIPPED / f"smollm2-{kind}" / "config.json").read_text())
    assert config_json(config, 30) == config_json(parse_config(shipped, 30), 30)


@pytest.mark.parametrize(
    ("layers", "count", "expected"),
    [
        (36, 5, (1, 9, 17, 25, 33)),  # published: Qwen3-4B and 8B
        (30, 5, (1, 8, 14, 20, 27)),
        (36, 1, (18,)),
        (8, 5, (1, 2, 3, 4, 5)),
        (5, 5, (1, 2)),
        (4, 5, (1,)),
        (3, 5, (0, 1)),
        (2, 5, (0,)),
        (2, 1, (0,)),
    ],
)
def test_feature_layers(layers: int, count: int, expected: tuple[int, ...]) -> None:
    assert feature_layers(layers, count) == expected


def test_feature_layers_are_ascending_and_never_the_last() -> None:
    for layers, count in itertools.product(range(2, 60), range(1, 10)):
        found = feature_layers(layers, count)
        assert list(found) == sorted(set(found)) and 1 <= len(found) <= count
        assert 0 <= found[0] and found[-1] <= layers - 2


def test_a_target_of_one_layer_is_refused() -> None:
    with pytest.raises(InputError, match="no layer that a drafter could read"):
        feature_layers(1, 5)


def test_heads_and_vocabulary_are_the_targets() -> None:
    target = tiny_qwen3()
    backbone = drafter_config(target, "domino").backbone
    for key in ("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"):
        assert getattr(backbone, key) == getattr(target.model.config, key)
    assert backbone.max_position_embeddings == target.max_positions
    assert backbone.rope_parameters == target.model.config.rope_parameters


def test_sizes_can_be_chosen() -> None:
    sizes = DrafterSizes(layers=2, features=2, block=7, intermediate=40, gru=9, rank=3)
    config = drafter_config(tiny_qwen3(), "domino", sizes, mask_token_id=3)
    assert config.backbone.num_hidden_layers == 2 and config.backbone.intermediate_size == 40
    assert config.head is not None and (config.head.gru_hidden_dim, config.head.emb_dim) == (9, 3)
    assert (config.block_size, config.horizon, config.mask_token_id, len(config.target_layer_ids)) == (7, 7, 3, 1)
    plain = drafter_config(tiny_qwen3(), "dflash", sizes)
    assert plain.head is None and plain.horizon == 6


@pytest.mark.parametrize("size", ["layers", "features", "block", "intermediate", "gru", "rank"])
def test_impossible_sizes_are_refused(size: str) -> None:
    with pytest.raises(InputError, match="sizes"):
        DrafterSizes(**{size: 0})


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InputError, match="no drafter of kind 'eagle'; there are domino, dflash"):
        drafter_config(tiny_qwen3(), "eagle")


# --- mask token -----------------------------------------------------------------------------------------


def test_a_given_mask_token_wins() -> None:
    assert mask_token(tiny_llama(tokenizer=tiny_tokenizer()), 7) == 7


def test_the_tokenizers_own_mask_token_comes_first() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.mask_token = "<spare0>"
    assert mask_token(tiny_llama(VOCABULARY + 8, tokenizer), None) == SPARE - 1


def test_a_row_beyond_the_tokenizer_comes_second() -> None:
    assert mask_token(tiny_llama(VOCABULARY + 8, tiny_tokenizer()), None) == VOCABULARY


def test_the_last_spare_special_token_comes_third() -> None:
    assert mask_token(tiny_llama(tokenizer=tiny_tokenizer()), None) == SPARE


def test_tokens_with_a_use_are_never_taken() -> None:
    glued = "{{ '<sp' + 'are1>' }}{% for m in messages %}{{ m['content'] }}<spare0>{% endfor %}<turn>"
    with pytest.raises(InputError, match="choose one with --mask-token-id"):
        mask_token(tiny_llama(tokenizer=tiny_tokenizer(glued)), None)
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = "<spare1>"
    target = tiny_llama(tokenizer=tokenizer)
    assert mask_token(target, None) == SPARE - 1
    target.eos_ids = frozenset({END, SPARE - 1})
    with pytest.raises(InputError, match="choose one with --mask-token-id"):
        mask_token(target, None)


def test_a_token_called_unused_will_do() -> None:
    tokenizer = tiny_tokenizer("{{ messages[0]['content'] }}<spare0><spare1><turn>")
    tokenizer.add_tokens([AddedToken("<unused7>", special=False), AddedToken("hello", special=False)])
    assert mask_token(tiny_llama(VOCABULARY + 2, tokenizer), None) == VOCABULARY


def test_without_a_tokenizer_the_id_must_be_given() -> None:
    with pytest.raises(InputError, match="tiny-llama has no token that is surely unused"):
        mask_token(tiny_llama(), None)
