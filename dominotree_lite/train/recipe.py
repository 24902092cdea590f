"""What drafter to train for a target: its layout follows the target, its size follows the shipped recipe.

With the defaults, SmolLM2-135M gets exactly the layout of the shipped drafters. This file does not know text,
losses or loops.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase, Qwen3Config

from ..checkpoints import default_layer_ids
from ..drafter import DominoConfig, DrafterConfig
from ..errors import InputError
from ..target import Target

KINDS = ("domino", "dflash")


@dataclass(frozen=True)
class DrafterSizes:
    """Sizes of a drafter. None takes a share of the target's hidden size H (GRU and rank: Domino only).

    Attributes:
        layers: of the backbone.
        features: layers of the target that are read.
        block: slots, the anchor's included.
        intermediate: width of the backbone's MLP; 4/3 H by default.
        gru: width of the head's GRU; 4/3 H by default, at most 1024.
        rank: of the head's correction; H/6 by default, at most 256.
        shift: does a slot predict the token after it? By default as published: with Domino, not with DFlash.
    """

    layers: int = 5
    features: int = 5
    block: int = 16
    intermediate: int | None = None
    gru: int | None = None
    rank: int | None = None
    shift: bool | None = None

    def __post_init__(self) -> None:
        given = [self.layers, self.features, self.block, self.intermediate, self.gru, self.rank]
        if min(size for size in given if size is not None) < 1:
            raise InputError(f"impossible sizes of a drafter: {self}")


def drafter_config(
    target: Target, kind: str, sizes: DrafterSizes | None = None, mask_token_id: int | None = None
) -> DrafterConfig:
    """A drafter of `kind` domino or dflash for any target.

    Heads, head width, rotary base and vocabulary are the target's. Domino shifts labels and leaves the first
    draft uncorrected, as published (arXiv 2605.29707, section 4); DFlash does not shift (arXiv 2602.06036).
    Raises InputError for an unknown kind, or if no mask token is given and none can be found.
    """
    if kind not in KINDS:
        raise InputError(f"no drafter of kind {kind!r}; there are {', '.join(KINDS)}")
    sizes = sizes or DrafterSizes()
    hidden = target.hidden_size
    head = DominoConfig(
        emb_dim=sizes.rank or min(256, max(1, hidden // 6)),
        gru_hidden_dim=sizes.gru or min(1024, 4 * hidden // 3),
        pure_draft_prefix_len=1,
    )
    return DrafterConfig(
        backbone=_backbone(target, sizes),
        mask_token_id=mask_token(target, mask_token_id),
        target_layer_ids=feature_layers(target.num_layers, sizes.features),
        block_size=sizes.block,
        shift_label=kind == "domino" if sizes.shift is None else sizes.shift,
        head=head if kind == "domino" else None,
    )


def _backbone(target: Target, sizes: DrafterSizes) -> Qwen3Config:
    config: Any = target.model.config
    heads = config.num_attention_heads
    return Qwen3Config(
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        intermediate_size=sizes.intermediate or 4 * target.hidden_size // 3,
        num_hidden_layers=sizes.layers,
        num_attention_heads=heads,
        num_key_value_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or target.hidden_size // heads,
        max_position_embeddings=target.max_positions,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": _rope_theta(config)},
        attention_bias=False,
    )


def _rope_theta(config: Any) -> float:
    """The target's rotary base, without its scaling: drafters are published with the plain one."""
    parameters = getattr(config, "rope_parameters", None) or {}
    return float(parameters.get("rope_theta") or getattr(config, "rope_theta", None) or 10_000.0)


def feature_layers(num_layers: int, count: int) -> tuple[int, ...]:
    """The published, evenly spaced layers; fewer where the target is too small for so many.

    The last layer's output is never one of them: transformers hands it out only after the final norm.
    """
    if num_layers < 2:
        raise InputError(f"a target of {num_layers} layer has no layer that a drafter could read")
    return tuple(sorted({min(max(i, 0), num_layers - 2) for i in default_layer_ids(num_layers, count)}))


def mask_token(target: Target, given: int | None) -> int:
    """The id whose embedding fills the slots to draft: a token that never occurs in text.

    In this order: the given id; the tokenizer's own mask token; the first embedding row beyond the tokenizer
    (so it is in the published Qwen3 drafters); the last special token that is neither a beginning, end,
    padding or unknown token nor part of the chat template. Raises InputError where there is none.
    """
    if given is not None:
        return given
    tokenizer = target.tokenizer
    if tokenizer is not None:
        beyond = max(tokenizer.get_vocab().values()) + 1
        found = [tokenizer.mask_token_id, beyond, *reversed(_spare_tokens(tokenizer, target.eos_ids))]
        for token in found:
            if token is not None and token < target.vocab_size:
                return int(token)
    raise InputError(f"{target.name} has no token that is surely unused: choose one with --mask-token-id")


def _spare_tokens(tokenizer: PreTrainedTokenizerBase, eos_ids: frozenset[int]) -> list[int]:
    """Ascending ids of tokens that are special, or unused by name, and have no known use."""
    names = ("bos", "eos", "pad", "unk", "sep", "cls")
    used = {getattr(tokenizer, f"{name}_token_id", None) for name in names} | eos_ids
    markers = _chat_markers(tokenizer)
    return sorted(
        token
        for token, entry in tokenizer.added_tokens_decoder.items()
        if (entry.special or "unused" in entry.content) and token not in used and entry.content not in markers
    )


def _chat_markers(tokenizer: PreTrainedTokenizerBase) -> str:
    """A text that holds every token of the chat template: its source, and (it may glue tokens) a rendering."""
    if tokenizer.chat_template is None:
        return ""
    messages = [{"role": role, "content": "x"} for role in ("user", "assistant", "user")]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return f"{tokenizer.chat_template}{rendered}"
