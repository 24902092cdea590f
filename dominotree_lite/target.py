"""A Hugging Face causal language model seen as prefill, verify and commit, with the features a drafter reads.

All that depends on the version of transformers is here. This file knows no trees and no drafters: it takes
tokens, positions and a mask, and hands back logits and hidden features.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import DynamicLayer

from .errors import InputError

SPARE_ROWS = 256  # of keys and values, whenever there is no room left
Message = dict[str, str]  # {"role": "user" or "assistant", "content": ...}


@dataclass(frozen=True)
class Forward:
    """What one pass yields: `logits` [N, V] in float32 or wider, `features` [N, T * H] (T = 0 if none asked)."""

    logits: Tensor
    features: Tensor


@dataclass(frozen=True)
class Reading:
    """What a drafter is trained on: `features` [B, S, T * H]; `final` [B, S, H], which `output` makes logits of."""

    features: Tensor
    final: Tensor


class _Layer(DynamicLayer):
    """One layer's keys and values with room behind them: a pass writes its own rows and copies no others."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Put rows [1, kv_heads, N, head_dim] behind those kept; returns all."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.room = {"keys": key_states[:, :, :0], "values": value_states[:, :, :0]}
        start = self.get_seq_length()
        end = start + key_states.shape[2]
        for name, new in (("keys", key_states), ("values", value_states)):
            room = self.room[name]
            if room.shape[2] < end:
                self.room[name] = new.new_empty(*new.shape[:2], end + SPARE_ROWS, new.shape[3])
                self.room[name][:, :, :start] = room[:, :, :start]
            self.room[name][:, :, start:end] = new
            setattr(self, name, self.room[name][:, :, :end])
        return self.room["keys"][:, :, :end], self.room["values"][:, :, :end]


class Context:
    """The keys and values of the tokens read so far: committed ones, and those of the last pass behind them."""

    def __init__(self) -> None:
        self.cache = Cache(layer_class_to_replicate=_Layer)
        self.length = 0  # committed tokens

    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of each layer [1, kv_heads, length, head_dim]."""
        layers: list[Any] = self.cache.layers
        return [(layer.keys, layer.values) for layer in layers]

    def commit(self, rows: list[int]) -> None:
        """Keep these rows of the last pass, in this order, behind the committed tokens; forget the others.

        A path through a tree need not be contiguous. transformers has no call that gathers cache rows, so the
        kept ones are moved to the front of the appended part and the rest is cut off.
        """
        end = self.length + len(rows)
        contiguous = rows == list(range(len(rows)))
        for layer in self.cache.layers:
            for name in ("keys", "values"):
                tensor = getattr(layer, name)  # [1, kv_heads, length + N, head_dim]
                if not contiguous:
                    index = torch.tensor(rows, device=tensor.device) + self.length
                    tensor[:, :, self.length : end] = tensor.index_select(2, index)
                setattr(layer, name, tensor[:, :, :end])
        self.length = end


class Target:
    """The model whose text is to be produced. Batch size 1, full attention, positions checked."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, name: str) -> None:
        _check_model(model, name)
        config = model.config
        self.model, self.tokenizer, self.name = model.eval().requires_grad_(False), tokenizer, name
        self.device, self.dtype = model.device, model.dtype
        self.num_layers, self.hidden_size = config.num_hidden_layers, config.hidden_size
        self.max_positions = config.max_position_embeddings
        self.embedding: nn.Module = model.get_input_embeddings()
        self.output: nn.Module = model.get_output_embeddings()
        self.vocab_size = self.output.weight.shape[0]
        eos = model.generation_config.eos_token_id if model.generation_config else None
        eos = config.eos_token_id if eos is None else eos
        self.eos_ids = frozenset([] if eos is None else [eos] if isinstance(eos, int) else eos)
        # transformers 5.24 calls the argument `cache`; before, it was `past_key_values`.
        parameters = inspect.signature(type(model).forward).parameters
        self.cache_name = "cache" if "cache" in parameters else "past_key_values"

    def encode(self, messages: list[Message]) -> list[int]:
        """Token ids of a conversation in the chat template, ready for a reply (the bare text without one).

        Templates that know a thinking mode are told to leave it off: drafters are trained for replies without.
        """
        if self.tokenizer is None:
            raise InputError(f"{self.name} has no tokenizer: give token ids instead of text")
        if self.tokenizer.chat_template is None:
            return list(self.tokenizer("\n\n".join(m["content"] for m in messages)).input_ids)
        rendered: Any = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=True, enable_thinking=False
        )
        return list(rendered["input_ids"])

    def decode(self, ids: list[int]) -> str:
        """Text of token ids, special tokens left out; without a tokenizer, the ids themselves."""
        if self.tokenizer is None:
            return " ".join(map(str, ids))
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def check_prompt(self, ids: list[int]) -> None:
        """Raise InputError if a prompt is empty, has ids outside the vocabulary, or exceeds the positions."""
        if not ids:
            raise InputError("the prompt is empty: it needs at least one token")
        if min(ids) < 0 or max(ids) >= self.vocab_size:
            raise InputError(f"the prompt has token ids outside the vocabulary of {self.vocab_size}")
        if len(ids) > self.max_positions:
            raise InputError(
                f"the prompt has {len(ids)} tokens, {self.name} has {self.max_positions} positions: shorten it"
            )

    @torch.inference_mode()
    def prefill(self, context: Context, ids: list[int], layer_ids: tuple[int, ...] = ()) -> Forward:
        """Read and commit the prompt. Logits [1, V] after its last token, features [n, T * H] of all tokens.

        Raises InputError as `check_prompt`.
        """
        self.check_prompt(ids)
        tokens = torch.tensor(ids, device=self.device)
        result = self.forward(context.cache, tokens, torch.arange(len(ids), device=self.device), None, layer_ids, 1)
        context.commit(list(range(len(ids))))
        return result

    @torch.inference_mode()
    def verify(
        self,
        context: Context,
        tokens: Tensor,
        positions: Tensor,
        visible: Tensor | None,
        layer_ids: tuple[int, ...] = (),
    ) -> Forward:
        """One pass over new tokens [N] at absolute positions [N]; nothing is committed yet.

        Args:
            visible: bool [N, N], which new tokens each one sees (committed ones it always sees); None for N = 1.
            layer_ids: 0-based layers whose outputs make up the features.
        """
        mask = None if visible is None else self._mask(visible, context.length)
        return self.forward(context.cache, tokens, positions, mask, layer_ids, 0)

    def _mask(self, visible: Tensor, past: int) -> Tensor:
        """Additive float mask [1, 1, N, past + N]. A boolean one is silently wrong with eager attention."""
        mask = torch.zeros(len(visible), past + len(visible), dtype=self.dtype, device=self.device)
        mask[:, past:].masked_fill_(~visible.to(self.device), torch.finfo(self.dtype).min)
        return mask[None, None]

    def forward(
        self,
        cache: Cache,
        tokens: Tensor,
        positions: Tensor,
        mask: Tensor | None,
        layer_ids: tuple[int, ...] = (),
        logits_to_keep: int = 0,
    ) -> Forward:
        """One pass over tokens [N] at absolute positions [N], which `cache` keeps.

        Args:
            mask: [1, 1, N, keys], added to the attention scores; None: each token sees those before it.
            logits_to_keep: rows of logits from the end; 0 keeps all.
        """
        out = self.model(
            input_ids=tokens[None],
            position_ids=positions[None],
            attention_mask=mask,
            use_cache=True,
            output_hidden_states=bool(layer_ids),
            logits_to_keep=logits_to_keep,
            **{self.cache_name: cache},
        )
        logits = out.logits[0].to(torch.promote_types(out.logits.dtype, torch.float32))
        return Forward(logits, self._features(out.hidden_states, layer_ids, len(tokens)))

    def _features(self, hidden: tuple[Tensor, ...] | None, layer_ids: tuple[int, ...], count: int) -> Tensor:
        """Concatenated outputs of layers; `hidden[0]` is the embedding's, so layer i's is `hidden[i + 1]`."""
        if hidden is None:
            return torch.empty(count, 0, dtype=self.dtype, device=self.device)
        return torch.cat([hidden[i + 1][0] for i in layer_ids], dim=-1)

    @torch.no_grad()
    def next_logits(self, cache: Cache, tokens: Tensor, position: Tensor, mask: Tensor) -> Tensor:
        """Logits [B, V] behind one token of each row [B, 1], all at one position [1], in the model's dtype.

        The cache keeps the tokens; `mask` [1, 1, 1, its length] is added to the attention scores.
        """
        out = self.model(
            input_ids=tokens,
            position_ids=position[None],
            attention_mask=mask,
            use_cache=True,
            **{self.cache_name: cache},
        )
        logits: Tensor = out.logits[:, -1]
        return logits

    @torch.no_grad()
    def read(self, ids: Tensor, layer_ids: tuple[int, ...]) -> Reading:
        """What right-padded rows of ids [B, S] give a drafter to learn from."""
        hidden = self.model.base_model(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
        return Reading(torch.cat([hidden[i + 1] for i in layer_ids], dim=-1), hidden[-1])

    def synchronize(self) -> None:
        """Wait for the device, so that a clock read after this is the work's own."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _check_model(model: PreTrainedModel, name: str) -> None:
    """Refuse what would verify a tree wrongly and say nothing."""
    config = model.config
    kinds, window = getattr(config, "layer_types", None), getattr(config, "sliding_window", None)
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None or "position_ids" not in inspect.signature(type(model).forward).parameters:
        raise InputError(f"{name}: a {config.model_type} model can't be told positions, so siblings can't share one")
    if kinds is None and window is not None and window < positions:
        kinds = ["sliding_attention"]
    if strange := sorted(set(kinds or []) - {"full_attention"}):
        raise InputError(f"{name}: layers of type {', '.join(strange)}; only full attention works here")
    if config._attn_implementation not in ("sdpa", "sdpa_grouped", "eager"):
        raise InputError(f"{name}: {config._attn_implementation} ignores a tree's mask; load it with sdpa or eager")
