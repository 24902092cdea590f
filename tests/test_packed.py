"""Packed linear layers against PyTorch's own product, and what must not change when a model is packed."""

import pytest
import torch
from torch import nn
from toy_models import random_drafter, target_of, tiny_model

from dominotree_lite.packed import PackedHead, PackedLinear, can_pack, group_attention, is_packed, pack_linears
from dominotree_lite.target import Context

needs_packing = pytest.mark.skipif(
    not can_pack(torch.zeros(1, 1)), reason="this PyTorch or processor has no oneDNN to pack for"
)


@needs_packing
@pytest.mark.parametrize("rows", [1, 2, 17, 64, 200])
@pytest.mark.parametrize("bias", [False, True])
def test_the_product_is_the_float64_one_up_to_rounding(rows: int, bias: bool) -> None:
    torch.manual_seed(rows)
    plain = nn.Linear(96, 40, bias=bias)
    x = torch.randn(3, rows, 96)
    exact = x.double() @ plain.weight.double().T + (plain.bias.double() if bias else 0)
    with torch.inference_mode():
        assert torch.allclose(PackedLinear(plain.weight, plain.bias)(x).double(), exact, atol=1e-5, rtol=0)


@needs_packing
def test_every_linear_is_replaced_and_greedy_text_stays() -> None:
    model = tiny_model("llama", tied=True)
    ids = torch.tensor([[5, 6, 7]])
    settings = {"max_new_tokens": 20, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    before, names = model.generate(ids, **settings), set(model.state_dict())
    linears = sum(type(module) is nn.Linear for module in model.modules())
    assert not is_packed(model) and pack_linears(model) == linears and is_packed(model)
    assert pack_linears(model) == 0  # nothing plain is left
    assert model.generate(ids, **settings).equal(before)
    assert set(model.state_dict()) == names
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


@needs_packing
def test_gradients_are_those_of_the_plain_layer() -> None:
    plain = nn.Linear(8, 4)
    x = torch.randn(5, 8)
    plain(x).square().sum().backward()
    wanted = plain.weight.grad.clone()
    plain.weight.grad = None
    PackedLinear(plain.weight, plain.bias)(x).square().sum().backward()
    assert torch.allclose(plain.weight.grad, wanted)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_are_left_alone(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).to(dtype)
    assert pack_linears(model) == 0 and not is_packed(model)


@needs_packing
def test_a_packed_head_is_the_plain_one_up_to_rounding() -> None:
    plain = random_drafter(target_of(tiny_model()), "domino", True, seed=1).head
    assert plain is not None
    packed, states, tokens = PackedHead(plain), plain.initial(), torch.tensor([3, 7, 1])
    with torch.inference_mode():
        for _ in range(3):
            wanted = plain.advance(states.expand(3, -1), tokens)
            assert torch.allclose(packed.advance(states.expand(3, -1), tokens), wanted, atol=1e-6, rtol=0)
            assert torch.allclose(packed.project_states(wanted), plain.project_states(wanted), atol=1e-6, rtol=0)
            states, tokens = wanted[:1], tokens.roll(1)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_grouped_attention_verifies_a_tree_as_transformers_own_does(family: str) -> None:
    target = target_of(tiny_model(family, dtype=torch.float64))
    visible = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]]).bool()
    tokens, positions = torch.tensor([4, 5, 6]), torch.tensor([4, 5, 5])

    def rows() -> torch.Tensor:
        context = Context()
        target.prefill(context, [1, 2, 3, 9])
        return target.verify(context, tokens, positions, visible).logits

    config = target.model.config
    assert config.num_attention_heads > config.num_key_value_heads
    wanted = rows()
    group_attention(target.model)
    assert config._attn_implementation != "sdpa"
    assert torch.allclose(rows(), wanted, atol=1e-12, rtol=0)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_grouped_attention_masks_several_tokens_after_a_cache_by_itself(family: str) -> None:
    target = target_of(tiny_model(family, dtype=torch.float64))
    ids = torch.tensor([[1, 2, 3, 9, 4, 5, 6]])
    whole = target.model(ids).logits
    group_attention(target.model)
    cache = {target.cache_name: target.model(ids[:, :4], use_cache=True).past_key_values}
    assert torch.allclose(target.model(ids[:, 4:], **cache).logits, whole[:, 4:], atol=1e-12, rtol=0)
