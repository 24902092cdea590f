"""Readings by captured graphs against the target's own."""

import pytest
import torch
from tiny_training import tiny_llama

from dominotree_lite.target import Target
from dominotree_lite.train.reader import Reader

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


@pytest.mark.parametrize("device", DEVICES)
def test_readings_are_the_targets_own_in_any_order_of_shapes(device: str) -> None:
    plain = tiny_llama(40)
    target = Target(plain.model.to(device), None, "tiny")
    reader, generator = Reader(target, (0, 2)), torch.Generator().manual_seed(0)
    for rows, width in ((3, 8), (3, 16), (3, 8), (2, 16), (3, 16)):
        ids = torch.randint(40, (rows, width), generator=generator).to(device)
        found, expected = reader(ids), target.read(ids, (0, 2))
        torch.testing.assert_close(found.features, expected.features, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found.final, expected.final, rtol=1e-5, atol=1e-5)
