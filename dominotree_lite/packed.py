"""Linear layers whose weights oneDNN has laid out beforehand: what makes a few dozen rows cheap on a CPU.

Plain float32 products of 8 to 64 rows reach less than half of what the processor can do on many machines. With
the weight in oneDNN's own layout the same rows cost 2 to 3 times less, and one row costs the same. Sums are
taken in another order, so logits differ in the last digits. PyTorch prepacks in this way when it freezes a
compiled model; the two operators behind that are called here directly. This file knows no models by name.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS = 32  # a typical tree: what the layout is chosen for; other numbers of rows work with it as well


class PackedLinear(nn.Linear):
    """An `nn.Linear` for inference. It keeps its plain `weight` (embeddings may share it) beside the packed one."""

    def __init__(self, plain: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.weight, self.bias = plain.weight, plain.bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(plain.weight.detach().contiguous(), ROWS)

    def forward(self, input: Tensor) -> Tensor:
        """[..., in_features] -> [..., out_features]; the plain product where gradients are asked for."""
        if torch.is_grad_enabled() and (input.requires_grad or self.weight.requires_grad):
            return F.linear(input, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(input, self._packed, self.bias, "none", [], "")


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
                setattr(module, name, PackedLinear(child))
                count += 1
    return count


def is_packed(model: nn.Module) -> bool:
    """Whether `pack_linears` has changed a model."""
    return any(isinstance(module, PackedLinear) for module in model.modules())
