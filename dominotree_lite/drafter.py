"""The drafter: a DFlash backbone that fills a whole block in one pass, and Domino's correction head.

The backbone (DFlash, arXiv 2602.06036, section 4) reads hidden features of the target's committed tokens and
a block `[anchor, mask, mask, ...]`, and returns one hidden row a slot. The head (Domino, arXiv 2605.29707,
section 4) adds to a slot's logits what a GRU over the drafted prefix knows. Parameter names are those of the
published checkpoints.

This file does not know trees, scores, files on disk or the target: it borrows the target's embedding and
output projection as two modules.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, Qwen3RotaryEmbedding, rotate_half

from .errors import InputError


@dataclass(frozen=True)
class DominoConfig:
    """Sizes of the correction head: low rank `emb_dim`, GRU width, and the drafts that stay uncorrected."""

    emb_dim: int
    gru_hidden_dim: int
    pure_draft_prefix_len: int = 1

    def __post_init__(self) -> None:
        if min(self.emb_dim, self.gru_hidden_dim) < 1 or self.pure_draft_prefix_len < 0:
            raise InputError(f"impossible sizes of the correction head: {self}")


@dataclass(frozen=True)
class DrafterConfig:
    """What a drafter is made of. `shift_label` true: slot i predicts the token after it (slot 0 drafts too)."""

    backbone: Qwen3Config
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    block_size: int = 16
    shift_label: bool = False
    head: DominoConfig | None = None

    def __post_init__(self) -> None:
        ids = self.target_layer_ids
        if not ids or list(ids) != sorted(set(ids)) or ids[0] < 0:
            raise InputError(f"target_layer_ids must be ascending layer indices, got {list(ids)}")
        if self.block_size < 2:
            raise InputError(f"block_size must be at least 2, got {self.block_size}")
        if not 0 <= self.mask_token_id < self.backbone.vocab_size:
            raise InputError(
                f"mask_token_id {self.mask_token_id} is outside the embedding of {self.backbone.vocab_size} rows"
            )

    @property
    def kind(self) -> str:
        """`domino` with a correction head, `dflash` without."""
        return "dflash" if self.head is None else "domino"

    @property
    def horizon(self) -> int:
        """Number of slots that predict: every slot with `shift_label`, all but the anchor's without."""
        return self.block_size if self.shift_label else self.block_size - 1

    @property
    def feature_size(self) -> int:
        """Width of the target's concatenated features of one token."""
        return len(self.target_layer_ids) * self.backbone.hidden_size


KeyValue = tuple[Tensor, Tensor]  # each [B, kv_heads, S, head_dim]


class RMSNorm(nn.RMSNorm):
    """The norm in its input's dtype: mixed precision would else leave the fused kernel for a slow one."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class BlockAttention(nn.Module):
    """Grouped-query attention whose queries come from the block and whose keys are context + block."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads or config.num_attention_heads
        self.groups = heads // kv_heads
        width, kv_width = heads * config.head_dim, kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, eps=config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, eps=config.rms_norm_eps)

    def split(self, rows: Tensor) -> Tensor:
        """[B, S, heads * head_dim] -> [B, heads, S, head_dim]."""
        return rows.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def key_value(self, rows: Tensor, rope: KeyValue) -> KeyValue:
        """Keys (normed and rotated) and values of any rows, context or block: [B, kv_heads, S, head_dim]."""
        return rotate(self.k_norm(self.split(self.k_proj(rows))), rope), self.split(self.v_proj(rows))

    def forward(self, block: Tensor, rope: KeyValue, context: KeyValue, mask: Tensor | None) -> Tensor:
        query = rotate(self.q_norm(self.split(self.q_proj(block))), rope)
        key, value = (
            torch.cat([old, new], dim=2)  # [B, kv_heads, S + Q, head_dim]
            for old, new in zip(context, self.key_value(block, rope), strict=True)
        )
        if mask is not None:  # with one, kernels on a GPU that know shared keys are slow
            key, value = (each.repeat_interleave(self.groups, dim=1) for each in (key, value))
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=mask is None)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class BlockLayer(nn.Module):
    """Pre-norm attention and SwiGLU with residuals. The context passes through neither norm nor MLP."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.self_attn = BlockAttention(config)
        self.mlp = Qwen3MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, block: Tensor, rope: KeyValue, context: KeyValue, mask: Tensor | None) -> Tensor:
        block = block + self.self_attn(self.input_layernorm(block), rope, context, mask)
        return block + self.mlp(self.post_attention_layernorm(block))


class DraftModel(nn.Module):
    """All trained parameters, under their published names. Neither embedding nor output projection is here."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        backbone, self.config = config.backbone, config
        self.fc = nn.Linear(config.feature_size, backbone.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(backbone.hidden_size, eps=backbone.rms_norm_eps)
        self.layers = nn.ModuleList(BlockLayer(backbone) for _ in range(backbone.num_hidden_layers))
        self.norm = RMSNorm(backbone.hidden_size, eps=backbone.rms_norm_eps)
        self.rotary = Qwen3RotaryEmbedding(backbone)
        if config.head is not None:
            gru, rank = config.head.gru_hidden_dim, config.head.emb_dim
            self.prefix_gru = nn.GRU(backbone.hidden_size, gru, bias=False, batch_first=True)
            self.embed_proj = nn.Sequential(
                nn.Linear(backbone.hidden_size + gru, rank, bias=False),
                nn.SiLU(),
                nn.Linear(rank, backbone.vocab_size, bias=False),
            )

    def context(self, features: Tensor, positions: Tensor) -> list[KeyValue]:
        """Keys and values a layer of committed tokens.

        Args:
            features: [B, S, T * H] concatenated outputs of the target's layers `target_layer_ids`.
            positions: [B, S] absolute positions of those tokens.
        """
        rows = self.hidden_norm(self.fc(features))  # [B, S, H]
        rope = self.rotary(rows, positions)
        return [cast(BlockLayer, layer).self_attn.key_value(rows, rope) for layer in self.layers]

    def forward(self, block: Tensor, positions: Tensor, context: list[KeyValue], mask: Tensor | None = None) -> Tensor:
        """Hidden rows [B, Q, H] of block embeddings [B, Q, H]; no mask: everything sees everything."""
        rope = self.rotary(block, positions)
        for layer, key_value in zip(self.layers, context, strict=True):
            block = layer(block, rope, key_value, mask)
        return self.norm(block)


def rotate(rows: Tensor, rope: KeyValue) -> Tensor:
    """Rotary position embedding of [B, heads, S, head_dim] by cosines and sines of [B, S, head_dim]."""
    cos, sin = (part.unsqueeze(1) for part in rope)
    return rows * cos + rotate_half(rows) * sin


class DominoHead:
    """The correction, cut in the pieces a tree shares: `W2 silu(W1_hidden h + W1_state s)` (arXiv 2605.29707, 4.2).

    It holds views of the model's weights and the target's embedding, no state of its own.
    """

    def __init__(self, model: DraftModel, embedding: nn.Module) -> None:
        config = model.config
        if config.head is None:
            raise InputError("this drafter has no correction head")
        self.uncorrected = config.head.pure_draft_prefix_len
        self.embedding = embedding
        self.w1_hidden, self.w1_state = model.get_parameter("embed_proj.0.weight").split(
            [config.backbone.hidden_size, config.head.gru_hidden_dim], dim=1
        )
        self.input_weight = model.get_parameter("prefix_gru.weight_ih_l0")  # [3G, H]
        self.state_weight = model.get_parameter("prefix_gru.weight_hh_l0")  # [3G, G]
        self.output_weight: Tensor = model.get_parameter("embed_proj.2.weight")  # W2 [V, r]

    def initial(self) -> Tensor:
        """The GRU state before any token: zeros [1, G]."""
        return self.w1_state.new_zeros(1, self.w1_state.shape[1])

    def advance(self, states: Tensor, tokens: Tensor) -> Tensor:
        """One GRU step a lane: states [W, G], token ids [W] -> [W, G]."""
        rows = self.embedding(tokens).to(states.dtype)
        return torch.gru_cell(rows, states, self.input_weight, self.state_weight)

    def project_hidden(self, hidden: Tensor) -> Tensor:
        """The half of W1 that all lanes of a depth share: hidden rows [L, H] -> [L, r]."""
        return F.linear(hidden, self.w1_hidden)

    def project_states(self, states: Tensor) -> Tensor:
        """The half of W1 that depends on the path: states [W, G] -> [W, r]."""
        return F.linear(states, self.w1_state)


@dataclass(frozen=True)
class Draft:
    """One block: `hidden` [L, H] and `base_logits` [L, V]; row d-1 predicts the token at depth d."""

    hidden: Tensor
    base_logits: Tensor


@dataclass
class ContextCache:
    """Keys and values of the committed tokens, a layer. Block entries never get in."""

    layers: list[KeyValue] = field(default_factory=list)

    def __len__(self) -> int:
        return self.layers[0][0].shape[2] if self.layers else 0

    def append(self, new: list[KeyValue]) -> None:
        """Add the context of newly committed tokens behind what is there."""
        if not self.layers:
            self.layers = new
            return
        self.layers = [
            (torch.cat([k, nk], dim=2), torch.cat([v, nv], dim=2))
            for (k, v), (nk, nv) in zip(self.layers, new, strict=True)
        ]


class Drafter:
    """A draft model bound to the embedding and output projection of its target."""

    def __init__(self, model: DraftModel, embedding: nn.Module, output: nn.Module, name: str = "") -> None:
        self.model, self.config, self.name = model.eval().requires_grad_(False), model.config, name
        self.kind, self.horizon = model.config.kind, model.config.horizon
        self._embedding, self._output = embedding, output
        self.head = DominoHead(model, embedding) if self.kind == "domino" else None

    @torch.inference_mode()
    def draft(self, anchor: int, features: Tensor, cache: ContextCache, slots: int | None = None) -> Draft:
        """Draft one block after `anchor`, the token at position `len(cache) + len(features)`.

        Args:
            anchor: id of the last committed token; its own features are not known yet.
            features: [n, T * H] of the tokens committed since the last call (n >= 0 after the first).
            cache: what earlier calls left; the new context is added to it, the block is not.
            slots: draft at most so many tokens (default: every slot that predicts).
        """
        start, device = len(cache) + len(features), features.device
        if len(features):
            positions = torch.arange(len(cache), start, device=device)[None]
            cache.append(self.model.context(features[None], positions))
        return self.draft_block(torch.tensor([anchor], device=device), start, cache.layers, None, slots)

    def draft_block(
        self,
        anchor: Tensor,
        start: int | Tensor,
        context: list[KeyValue],
        mask: Tensor | None = None,
        slots: int | None = None,
    ) -> Draft:
        """One block after `anchor` [1], which stands at position `start`, over the keys and values of a context.

        Nothing is looked at, so a graph can capture this. `mask` [1, 1, 1, S + block], bool: what is seen (all).
        """
        size = self.config.block_size
        ids = torch.full((1, size), self.config.mask_token_id, device=anchor.device)
        ids[:, 0] = anchor
        positions = torch.arange(size, device=anchor.device)[None] + start
        rows = self.model(self._embedding(ids), positions, context, mask)[0]  # [block, H]
        first = 0 if self.config.shift_label else 1
        hidden = rows[first:][:slots]
        return Draft(hidden=hidden, base_logits=self._output(hidden))
