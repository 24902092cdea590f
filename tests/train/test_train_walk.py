"""Walks over known text against decoding itself, round by round."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor
from toy_models import KINDS, random_drafter, target_of, tiny_model

from dominotree_lite.decode import Settings, decode
from dominotree_lite.drafter import Drafter
from dominotree_lite.target import Target
from dominotree_lite.train.blocks import Blocks
from dominotree_lite.train.corpus import Batch
from dominotree_lite.train.walk import WALKS, TreeSize, walk

PROMPTS = [[1, 2, 3], [4, 0, 2, 2, 1], [3], [0, 1]]
NEW = 24
SIZE = TreeSize(budget=7, candidates=4)


@cache
def target() -> Target:
    return target_of(tiny_model(vocabulary=6, dtype=torch.float64))


def drafter_of(kind: str, shift: bool) -> Drafter:
    return random_drafter(target(), kind, shift, seed=3)


def starts(prompt: list[int], drafter: Drafter, method: str) -> list[int]:
    """Where the rounds of real decoding begin."""
    settings = Settings(method=method, budget=SIZE.budget, candidates=SIZE.candidates, max_new_tokens=NEW)
    result = decode(prompt, target(), drafter, settings)
    return [one.start for one in result.rounds]


def texts() -> Batch:
    """The target's own greedy continuations, of unequal lengths, with garbage behind the shorter ones."""
    rows = []
    for prompt in PROMPTS:
        result = decode(prompt, target(), None, Settings(method="ar", max_new_tokens=NEW))
        rows.append(prompt + result.token_ids)
    width = max(map(len, rows))
    ids = torch.tensor([row + [5] * (width - len(row)) for row in rows])
    anchors = torch.tensor([[len(prompt)] for prompt in PROMPTS])
    return Batch(ids, torch.tensor([len(row) for row in rows]), anchors)


def walked(drafter: Drafter, method: str, batch: Batch) -> Tensor:
    blocks = Blocks(drafter.model, target().embedding.weight, target().output.weight)
    features = target().read(batch.ids, drafter.config.target_layer_ids).features
    found = walk(blocks, features, batch, method, SIZE)
    assert found.tokens.tolist() == [NEW - 1] * len(PROMPTS)
    assert found.rounds.tolist() == (found.anchors >= 0).sum(1).tolist()
    return found.anchors


@pytest.mark.parametrize("shift", [True, False])
@pytest.mark.parametrize("method", ["dflash", "ddtree", "domino", "marginal", "dominotree"])
def test_rounds_begin_where_decoding_begins_them(method: str, shift: bool) -> None:
    drafter = drafter_of(KINDS[method] or "", shift)
    assert method in WALKS[drafter.kind]
    anchors = walked(drafter, method, texts())
    expected = [starts(prompt, drafter, method) for prompt in PROMPTS]
    assert [[a for a in row if a >= 0] for row in anchors.tolist()] == expected
    assert any(b - a > 2 for row in expected for a, b in zip(row, row[1:], strict=False)), "nothing was accepted"


def test_the_base_alone_is_the_chain_of_a_head_that_corrects_nothing() -> None:
    drafter = drafter_of("domino", True)
    anchors = walked(drafter, "base", texts())
    drafter.model.get_parameter("embed_proj.2.weight").zero_()
    expected = [starts(prompt, drafter, "domino") for prompt in PROMPTS]
    assert [[a for a in row if a >= 0] for row in anchors.tolist()] == expected


def test_a_text_of_one_token_takes_no_round() -> None:
    batch = texts()
    batch = replace(batch, lengths=batch.anchors[:, 0] + 1)
    drafter = drafter_of("domino", True)
    blocks = Blocks(drafter.model, target().embedding.weight, target().output.weight)
    features = target().read(batch.ids, drafter.config.target_layer_ids).features
    found = walk(blocks, features, batch, "dominotree", SIZE)
    assert found.tokens.tolist() == found.rounds.tolist() == [0] * len(PROMPTS)
