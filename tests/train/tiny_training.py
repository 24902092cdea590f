"""Tiny targets, tokenizers, drafters and texts that the tests of training share."""

import itertools
from pathlib import Path

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from dominotree_lite.drafter import DominoConfig, DrafterConfig, DraftModel
from dominotree_lite.target import Target
from dominotree_lite.train.corpus import Corpus
from dominotree_lite.train.losses import fresh_model

SPECIAL = ["<bos>", "<end>", "<turn>", "<spare0>", "<spare1>"]
BOS, END, TURN, SPARE = 0, 1, 2, 4
CHAT = (
    "{{ '<bos>' }}{% for message in messages %}{{ '<turn>' + message['role'] + ' ' + message['content'] + '<end>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<turn>assistant ' }}{% endif %}"
)


def tiny_tokenizer(chat_template: str | None = CHAT, bos: bool = True) -> PreTrainedTokenizerFast:
    """One token a byte (ids from 5 on), behind the special ones."""
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: i + len(SPECIAL) for i, symbol in enumerate(symbols)}
    inner = Tokenizer(models.BPE(vocab=vocabulary | {name: i for i, name in enumerate(SPECIAL)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    names = {"eos_token": "<end>"} | ({"bos_token": "<bos>"} if bos else {})
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, **names)
    tokenizer.chat_template = chat_template
    return tokenizer


VOCABULARY = len(SPECIAL) + 256
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": BOS,
    "eos_token_id": END,
}


def tiny_llama(vocabulary: int = VOCABULARY, tokenizer: PreTrainedTokenizerFast | None = None) -> Target:
    """A random Llama whose logits spread widely, so that its text is not noise and turns do end."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, initializer_range=0.2, **SIZES))
    model.generation_config = GenerationConfig(eos_token_id=END)
    with torch.no_grad():
        model.lm_head.weight[END] *= 4
    return Target(model, tokenizer, "tiny-llama")


def tiny_qwen3() -> Target:
    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=VOCABULARY, head_dim=8, tie_word_embeddings=True, initializer_range=0.2, layer_types=None, **SIZES
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=END)
    return Target(model, tiny_tokenizer(), "tiny-qwen3")


def tiny_config(
    kind: str = "domino",
    shift: bool = True,
    vocabulary: int = 11,
    hidden: int = 16,
    block: int = 5,
    uncorrected: int = 1,
    features: tuple[int, ...] = (0, 2),
) -> DrafterConfig:
    backbone = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=128,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        attention_bias=False,
    )
    head = DominoConfig(emb_dim=6, gru_hidden_dim=7, pure_draft_prefix_len=uncorrected)
    return DrafterConfig(backbone, 0, features, block, shift, head if kind == "domino" else None)


def awake_model(config: DrafterConfig, seed: int = 0) -> DraftModel:
    """A drafter in float64 whose every part matters: a fresh one corrects nothing and hardly attends."""
    model = fresh_model(config, seed).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.5 if "prefix_gru" in name else 0.35)
            else:
                torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model


def matrix(rows: int, columns: int, seed: int) -> Tensor:
    return torch.randn(rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def text_of(rows: list[list[int]], reply: int = 0, temperature: float = 0.0) -> Corpus:
    """A corpus of the given rows, all with their reply at the same index."""
    lengths = np.array([len(row) for row in rows], np.int64)
    return Corpus(
        flat=np.array(list(itertools.chain.from_iterable(rows)), np.int32),
        start=np.cumsum(lengths) - lengths,
        length=lengths,
        reply=np.full(len(rows), reply),
        temperature=np.full(len(rows), temperature, np.float32),
    )


def random_rows(count: int, vocabulary: int, seed: int, lengths: tuple[int, int] = (12, 30)) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(vocabulary, size=rng.integers(*lengths)).tolist() for _ in range(count)]


def write_npz(path: Path, rows: list[list[int]], reply: int, **changes: object) -> Path:
    """A corpus file as author.py writes it; `changes` replace arrays, None leaves one out."""
    flat = np.array(list(itertools.chain.from_iterable(rows)), np.int32)
    arrays: dict[str, object] = {
        "flat": flat if flat.max() >= 1 << 16 else flat.astype(np.uint16),
        "len": np.array([len(row) for row in rows], np.int32),
        "ast": np.full(len(rows), reply, np.int32),
        "temp": np.zeros(len(rows), np.float32),
    }
    np.savez(path, **{key: value for key, value in (arrays | changes).items() if value is not None})
    return path
