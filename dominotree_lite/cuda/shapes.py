"""Targets and drafters to be timed: SmolLM2 as shipped, and Qwen3's shapes with random weights.

Random weights draft and accept nothing sensible, but their operations take the time of trained ones. So that the
trees are as deep as a trained drafter's, its base logits get a fixed slope: at each depth one token has most of the
probability, and the others follow by rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, Qwen3Config

from ..checkpoints import default_layer_ids, load_drafter, load_target
from ..drafter import DominoConfig, Drafter, DrafterConfig, DraftModel
from ..target import Target

BLOCK, DRAFT_LAYERS, GRU, RANK = 16, 5, 1024, 256
SLOPE = 3.5  # logits a unit of log rank: the first token has nine tenths of the base's probability
SIZES: dict[str, dict[str, Any]] = {
    "qwen3-4b": {"hidden_size": 2560, "intermediate_size": 9728, "tie_word_embeddings": True},
    "qwen3-8b": {"hidden_size": 4096, "intermediate_size": 12288, "tie_word_embeddings": False},
    "tiny": {
        "hidden_size": 32, "intermediate_size": 48, "tie_word_embeddings": True, "vocab_size": 300, "head_dim": 8,
        "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
    },
}  # fmt: skip
COMMON: dict[str, Any] = {
    "vocab_size": 151_936, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "max_position_embeddings": 40_960, "eos_token_id": None, "bos_token_id": None,
    "pad_token_id": None,
}  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """What is timed together. `weights` says where they come from."""

    target: Target
    drafter: Drafter
    weights: str


class Sloped(nn.Module):
    """An output projection whose logits, row by row, fall with a token's rank in a random order."""

    def __init__(self, output: nn.Module, rows: int, vocabulary: int, like: Tensor) -> None:
        super().__init__()
        generator = torch.Generator(like.device).manual_seed(0)
        ranks = torch.rand(rows, vocabulary, generator=generator, device=like.device).argsort(-1)
        self.output = output
        self.slope = (12 - SLOPE * (ranks + 1.0).log()).to(like.dtype)

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits [n, V] of the first n rows."""
        return 0.1 * self.output(hidden) + self.slope[: len(hidden)]


def load_pair(name: str, device: str, dtype: torch.dtype) -> Pair:
    """A target with its Domino drafter."""
    if name == "smollm2":
        target = load_target(name, device, dtype)
        target.eos_ids = frozenset()  # what is timed must not end
        return Pair(target, load_drafter("smollm2-domino", target), "as shipped")
    config = Qwen3Config(**(COMMON | SIZES[name]))
    torch.manual_seed(0)
    with torch.device(device):
        target = Target(AutoModelForCausalLM.from_config(config, dtype=dtype), None, name)
    return Pair(target, random_drafter(target, config), "random")


def random_drafter(target: Target, config: Qwen3Config) -> Drafter:
    """A Domino drafter of the published sizes for this target."""
    layer_ids = default_layer_ids(config.num_hidden_layers, DRAFT_LAYERS)
    layer_ids = tuple(sorted({min(layer, config.num_hidden_layers - 2) for layer in layer_ids}))
    head = DominoConfig(RANK, GRU) if config.hidden_size > RANK else DominoConfig(8, 16)
    backbone = Qwen3Config(**(config.to_dict() | {"num_hidden_layers": DRAFT_LAYERS, "layer_types": None}))
    with torch.device(target.device):
        model = DraftModel(DrafterConfig(backbone, 1, layer_ids, BLOCK, True, head)).to(target.dtype)
    model.rotary = type(model.rotary)(backbone).to(target.device)  # its frequencies must not be rounded
    output = Sloped(target.output, BLOCK, target.vocab_size, target.output.get_parameter("weight"))
    return Drafter(model, target.embedding, output, "random domino")
