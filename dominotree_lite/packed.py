"""What makes a few dozen rows cheap on a CPU: linear layers laid out for oneDNN, and attention that copies nothing.

Plain float32 products of 8 to 64 rows reach less than half of what the processor can do on many machines. With
the weight in oneDNN's own layout the same rows cost 2 to 3 times less, and one row costs the same. Sums are
taken in another order, so logits differ in the last digits. PyTorch prepacks in this way when it freezes a
compiled model; the two operators behind that are called here directly. Where several query heads share a key head,
transformers would copy all keys for every query head wherever there is a mask. This file knows no models by name.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from .drafter import DominoHead, Drafter

GROUPED = "sdpa_grouped"  # a name that target.py knows too
ROWS = 32  # a typical tree: what the layout is chosen for; other numbers of rows work with it as well


class PackedLinear(nn.Linear):
    """An `nn.Linear` for inference. It keeps its plain `weight` (embeddings may share it) beside the packed one."""

    def __init__(self, weight: Any, bias: Any = None) -> None:
        nn.Module.__init__(self)
        self.out_features, self.in_features = weight.shape
        self.weight, self.bias = weight, bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), ROWS)

    def forward(self, input: Tensor) -> Tensor:
        """[..., in_features] -> [..., out_features]; the plain product where gradients are asked for."""
        if torch.is_grad_enabled() and (input.requires_grad or self.weight.requires_grad):
            return F.linear(input, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(input, self._packed, self.bias, "none", [], "")


class PackedHead(DominoHead):
    """A Domino head whose GRU and state half of W1 are packed; the rest is the plain head's."""

    def __init__(self, plain: DominoHead) -> None:
        self.__dict__.update(plain.__dict__)
        self._by_token, self._by_state, self._project = (
            PackedLinear(nn.Parameter(weight, requires_grad=False))
            for weight in (plain.input_weight, plain.state_weight, plain.w1_state)
        )

    def advance(self, states: Tensor, tokens: Tensor) -> Tensor:
        """One GRU step as `torch.gru_cell`'s, without biases: its gates are reset, update and new."""
        new, old = self._by_token(self.embedding(tokens)), self._by_state(states)  # [W, 3G]
        width = states.shape[1]
        reset, update = (new[:, : 2 * width] + old[:, : 2 * width]).sigmoid().split(width, dim=1)
        proposed = torch.addcmul(new[:, 2 * width :], reset, old[:, 2 * width :]).tanh()
        return torch.lerp(proposed, states, update)

    def project_states(self, states: Tensor) -> Tensor:
        return self._project(states)


def can_pack(tensor: Tensor) -> bool:
    """Whether a weight can be packed: float32 on a CPU, in a PyTorch that has oneDNN and its operators."""
    if tensor.device.type != "cpu" or tensor.dtype != torch.float32 or not torch.backends.mkldnn.is_available():
        return False
    return all(hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise"))


def pack_linears(model: nn.Module) -> int:
    """Put a `PackedLinear` in place of every plain linear layer that can be packed; returns how many."""
    count = 0
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear and can_pack(child.weight):
                setattr(module, name, PackedLinear(child.weight, child.bias))
                count += 1
    return count


def is_packed(model: nn.Module) -> bool:
    """Whether `pack_linears` has changed a model."""
    return any(isinstance(module, PackedLinear) for module in model.modules())


def grouped_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **rest: Any
) -> tuple[Tensor, None]:
    """Attention [B, N, heads, head_dim] as transformers' `sdpa`, query heads sharing a key head without copies of it.

    Takes `query` [B, heads, N, head_dim], `key` and `value` [B, kv_heads, S, head_dim], a mask [B, 1, N, S] to add.
    """
    if attention_mask is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **rest)
    out = F.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=rest["scaling"], enable_gqa=True
    )
    return out.transpose(1, 2).contiguous(), None


def pack_model(model: PreTrainedModel) -> None:
    """All of this for a target, where its linear layers can be packed."""
    if pack_linears(model):
        group_attention(model)


def pack_drafter(drafter: Drafter) -> None:
    """The same for a drafter's layers and head."""
    model = drafter.model
    if not pack_linears(model.layers):
        return
    model.fc = PackedLinear(model.fc.weight, model.fc.bias)
    if drafter.head is not None:
        drafter.head = PackedHead(drafter.head)


def group_attention(model: PreTrainedModel) -> None:
    """Give a model with transformers' `sdpa` the attention above, under the masks of `sdpa`.

    Under a name that has no masks of its own transformers makes none, and several tokens after a cache would see wrong
    ones.
    """
    if model.config._attn_implementation == "sdpa":
        AttentionInterface.register(GROUPED, grouped_attention)
        AttentionMaskInterface.register(GROUPED, sdpa_mask)
        model.set_attn_implementation(GROUPED)
