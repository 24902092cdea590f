"""Tiny real transformers models, drafters that know the answer or nothing, and oracles that share no code.

The oracles: `greedy` is transformers' own generate; `plain_logits` and `plain_features` read a text in one pass
without any cache; `outcomes` runs a random program once for every sequence of its choices.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from dominotree_lite.drafter import DominoConfig, Drafter, DrafterConfig, DraftModel, KeyValue
from dominotree_lite.target import Target
from dominotree_lite.tree import DraftTree

FAMILIES = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}
KINDS = {
    "ar": None,
    "dflash": "dflash",
    "ddtree": "dflash",
    "domino": "domino",
    "marginal": "domino",
    "greedypath": "domino",
    "dominotree": "domino",
}
ADAPTIVE = {"caddtree": "dflash", "condadaptive": "domino", "caladaptive": "domino"}
TREES = ("ddtree", "marginal", "greedypath", "dominotree")
CHAT = (
    "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)
Outcome = TypeVar("Outcome")
Choose = Callable[[Sequence[float]], int]


# --- Targets ---------------------------------------------------------------------------------------------------


def tiny_model(
    family: str = "llama",
    vocabulary: int = 50,
    *,
    tied: bool = False,
    dtype: torch.dtype = torch.float32,
    positions: int = 512,
    seed: int = 0,
    attention: str = "sdpa",
) -> PreTrainedModel:
    """Three layers, hidden 32, four heads over two kv heads; weights large enough for a text that varies."""
    make_config, make_model = FAMILIES[family]
    config = make_config(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=positions,
        initializer_range=0.3,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        attn_implementation=attention,
    )
    torch.manual_seed(seed)
    model = make_model(config).to(dtype).eval()
    return _with_exact_norms(model) if dtype == torch.float64 else model


def _with_exact_norms(model: PreTrainedModel) -> PreTrainedModel:
    """The same model with norms in its own precision: those of transformers always compute in float32."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child).__name__.endswith("RMSNorm"):
                norm = nn.RMSNorm(child.weight.shape, eps=child.variance_epsilon)
                norm.weight = child.weight
                setattr(module, name, norm)
    return model


@cache
def cached_model(family: str = "llama", tied: bool = False) -> PreTrainedModel:
    """One model for many tests. `target_of` sets its EOS ids anew each time."""
    return tiny_model(family, tied=tied)


def counting_model(vocabulary: int = 64, order: Sequence[int] | None = None) -> PreTrainedModel:
    """A Llama whose next token is the successor of the last one in a cycle, with probability near 1."""
    order = list(order or range(vocabulary))
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=vocabulary,
        intermediate_size=8,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=4,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    model.get_input_embeddings().weight.copy_(torch.eye(vocabulary))
    model.get_output_embeddings().weight.zero_()
    for token, following in zip(order, order[1:] + order[:1], strict=True):
        model.get_output_embeddings().weight[following, token] = 2.0
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    return model


def target_of(
    model: PreTrainedModel, eos: int | list[int] | None = None, tokenizer: PreTrainedTokenizerFast | None = None
) -> Target:
    model.generation_config.eos_token_id = eos
    return Target(model, tokenizer, "toy")


def byte_tokenizer(chat: bool = False) -> PreTrainedTokenizerFast:
    """One token a byte, after the special tokens <s> = 0 and <|end|> = 1. 258 tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: i for i, piece in enumerate(["<s>", "<|end|>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="<|end|>")
    wrapped.chat_template = CHAT if chat else None
    return wrapped


# --- Plain decoding ----------------------------------------------------------------------------------------------


def greedy(model: PreTrainedModel, prompt: Sequence[int], count: int) -> list[int]:
    """New tokens of transformers' own greedy generate, which stops at any EOS id of the model."""
    eos = model.generation_config.eos_token_id
    return list(_generated(model, tuple(prompt), count, tuple(eos) if isinstance(eos, list) else eos))


@cache
def _generated(
    model: PreTrainedModel, prompt: tuple[int, ...], count: int, eos: int | tuple[int, ...] | None
) -> tuple[int, ...]:
    if count == 0:
        return ()
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, pad_token_id=0
    )
    return tuple(out[0, len(prompt) :].tolist())


@torch.no_grad()
def plain_logits(model: PreTrainedModel, ids: Sequence[int]) -> Tensor:
    """[n, V] of one pass over the whole text, no cache and no mask of ours."""
    return model(torch.tensor([list(ids)]), use_cache=False).logits[0]


@torch.no_grad()
def plain_features(model: PreTrainedModel, ids: Sequence[int], layer_ids: Sequence[int]) -> Tensor:
    """[n, T * H]: what the decoder layers themselves return, caught on their way out."""
    caught: dict[int, Tensor] = {}

    def catch(index: int) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: object, output: Tensor | tuple[Tensor, ...]) -> None:
            caught[index] = (output if isinstance(output, Tensor) else output[0])[0]

        return hook

    handles = [model.model.layers[i].register_forward_hook(catch(i)) for i in layer_ids]
    model(torch.tensor([list(ids)]), use_cache=False)
    for handle in handles:
        handle.remove()
    return torch.cat([caught[i] for i in layer_ids], dim=-1)


def margin(model: PreTrainedModel, prompt: Sequence[int], text: Sequence[int]) -> float:
    """How far the closest greedy decision of `text` is from another one, in logits."""
    rows = plain_logits(model, [*prompt, *text])[len(prompt) - 1 : -1]
    best = rows.topk(2).values
    return float((best[:, 0] - best[:, 1]).min())


# --- Drafters ----------------------------------------------------------------------------------------------------


def drafter_config(
    vocabulary: int,
    hidden: int,
    kind: str,
    shift: bool,
    *,
    block: int = 6,
    mask: int = 2,
    layers: int = 2,
    uncorrected: int = 1,
    layer_ids: tuple[int, ...] = (0, 1),
) -> DrafterConfig:
    backbone = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=24,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    )
    head = DominoConfig(emb_dim=7, gru_hidden_dim=5, pure_draft_prefix_len=uncorrected)
    return DrafterConfig(backbone, mask, layer_ids, block, shift, head if kind == "domino" else None)


def randomise(model: nn.Module, seed: int, spread: float = 0.4) -> None:
    """Weights of this spread, norms around 1: nothing is the identity by accident."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        weight.data = (noise * spread + ("norm" in name)).to(weight.dtype)


def random_drafter(target: Target, kind: str, shift: bool = False, *, seed: int = 0, **options: int) -> Drafter:
    """A drafter that knows nothing; `options` as in `drafter_config`."""
    model = DraftModel(drafter_config(target.vocab_size, target.hidden_size, kind, shift, **options))
    randomise(model, seed)
    return Drafter(model.to(target.device, target.dtype), target.embedding, target.output, f"random {kind}")


class OracleModel(DraftModel):
    """A backbone that was told the text, and checks all it is given on the way: features, positions, block.

    Slot j stands at position p = start + j and must hand out the row of p, or of p + 1 with `shift_label`;
    so one wrong slot, position or feature row and nothing is accepted, or an assertion fails.
    """

    def __init__(self, config: DrafterConfig, text: Sequence[int], rows: Tensor, features: Tensor) -> None:
        super().__init__(config)
        self.text, self.rows, self.features = list(text), rows, features

    def context(self, features: Tensor, positions: Tensor) -> list[KeyValue]:
        torch.testing.assert_close(features[0], self.features[positions[0]], rtol=1e-3, atol=1e-3)
        seen = positions[:, None, :, None].clone()
        return [(seen, seen) for _ in self.layers]

    def forward(self, block: Tensor, positions: Tensor, context: list[KeyValue], mask: Tensor | None = None) -> Tensor:
        assert mask is None
        start = int(positions[0, 0])
        assert positions[0].tolist() == list(range(start, start + self.config.block_size))
        assert len(context) == len(self.layers)
        assert all(key.flatten().tolist() == list(range(start)) for key, _ in context)
        expected = [self.text[start]] + [self.config.mask_token_id] * (self.config.block_size - 1)
        assert block[0].argmax(-1).tolist() == expected  # the embedding is the identity
        return self.rows[positions[0] + self.config.shift_label][None]


def random_for(method: str, target: Target, **options: Any) -> Drafter | None:
    """A random drafter of the kind a method needs; None for `ar`."""
    kind = KINDS[method]
    return None if kind is None else random_drafter(target, kind, **options)


def oracle_drafter(
    target: Target,
    prompt: Sequence[int],
    count: int,
    kind: str,
    shift: bool = False,
    *,
    block: int = 6,
    mask: int = 2,
    wrong: float = 0.0,
    seed: int = 0,
) -> Drafter:
    """Drafts the target's own greedy continuation. `wrong`: share of positions where it is not the favourite.

    There the right token comes second, third or fourth, so that accepted paths leave the first branch. With
    `wrong`, a Domino head also adds a correction of about that size; without, its correction is zero.
    """
    config = drafter_config(target.vocab_size, target.vocab_size, kind, shift, block=block, mask=mask)
    text = [*prompt, *greedy(target.model, prompt, count)]
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(len(text) + block + 1, target.vocab_size))
    for position, token in enumerate(text):
        rows[position, token] = 40.0 if not wrong else rows[position].max() + 1.5
        if generator.random() < wrong:
            others = np.delete(np.arange(target.vocab_size), token)
            ahead = generator.choice(others, size=generator.integers(1, 4), replace=False)
            rows[position, ahead] = rows[position, token] + generator.random(len(ahead))
    features = plain_features(target.model, text, config.target_layer_ids)
    model = OracleModel(config, text, torch.tensor(rows, dtype=torch.float32), features)
    if kind == "domino":
        randomise(model.prefix_gru, seed)
        randomise(model.embed_proj, seed, spread=0.15 if wrong else 0.0)
    embedding = nn.Embedding.from_pretrained(torch.eye(target.vocab_size))
    return Drafter(model, embedding, nn.Identity(), f"oracle {kind}")


# --- Trees and chance --------------------------------------------------------------------------------------------


def random_tree(chance: np.random.Generator, anchor: int, size: int, vocabulary: int) -> DraftTree:
    """Any shape, any tokens, siblings distinct; nodes in an order that only respects parents."""
    tokens, parents, depths, scores = [anchor], [-1], [0], [0.0]
    taken: set[tuple[int, int]] = set()
    while len(tokens) <= size:
        parent, token = int(chance.integers(len(tokens))), int(chance.integers(vocabulary))
        if (parent, token) in taken:
            continue
        taken.add((parent, token))
        tokens.append(token)
        parents.append(parent)
        depths.append(depths[parent] + 1)
        scores.append(scores[parent] - float(chance.random()))
    return DraftTree.from_lists(tokens, parents, depths, scores)


class _Branch:
    """One run of a program: the choices of a script, then the first possible one each time."""

    def __init__(self, script: list[int], waiting: list[list[int]]) -> None:
        self.script, self.waiting, self.taken, self.weight = script, waiting, list[int](), 1.0

    def choose(self, probabilities: Sequence[float]) -> int:
        if len(self.taken) < len(self.script):
            pick = self.script[len(self.taken)]
        else:
            pick, *others = [i for i, p in enumerate(probabilities) if p > 0]
            self.waiting.extend([*self.taken, other] for other in others)
        self.taken.append(pick)
        self.weight *= probabilities[pick]
        return pick


def outcomes(program: Callable[[Choose], Outcome]) -> Iterator[tuple[Outcome, float]]:
    """Every outcome of a program whose only chance is `choose(probabilities)`, with its probability."""
    waiting: list[list[int]] = [[]]
    while waiting:
        branch = _Branch(waiting.pop(), waiting)
        outcome = program(branch.choose)
        yield outcome, branch.weight


def law(program: Callable[[Choose], Outcome]) -> dict[Outcome, float]:
    """The exact probability of every outcome of a program (see `outcomes`)."""
    total: dict[Outcome, float] = {}
    for outcome, weight in outcomes(program):
        total[outcome] = total.get(outcome, 0.0) + weight
    return total


def naive_law(logits: list[float], temperature: float, top_k: int, top_p: float) -> list[float]:
    """Temperature, then the k largest, then the fewest of them whose mass reaches p; distinct logits only."""
    scaled = [logit / temperature for logit in logits]
    ranked = sorted(range(len(logits)), key=lambda i: -scaled[i])[: top_k or None]
    masses = {i: math.exp(scaled[i] - scaled[ranked[0]]) for i in ranked}
    total, kept, mass = sum(masses.values()), [], 0.0
    for i in ranked:
        if kept and mass / total >= top_p:
            break
        kept.append(i)
        mass += masses[i]
    return [masses[i] / mass if i in kept else 0.0 for i in range(len(logits))]
