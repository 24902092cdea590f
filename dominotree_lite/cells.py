"""Cells of an evaluation: methods times temperatures, budgets and candidates, each only where it is read.

A chain has no budget, and a tree that is not corrected has no candidates: such methods get one cell in place of
one a value. This file decodes nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from .methods import Settings
from .verify import Sampling

Candidates = int | Literal["full"] | None

CHAINS = frozenset({"ar", "dflash", "domino"})
UNCORRECTED = frozenset({"ddtree", "marginal", "caddtree"})


@dataclass(frozen=True)
class Cell:
    """One method under one set of settings; None is what it does not read (`child_cap` None: min(M, budget)).

    An adaptive method's budget is the cap of the one it chooses each round.
    """

    method: str
    temperature: float
    budget: int | None
    candidates: Candidates
    child_cap: int | None

    def settings(self, max_new_tokens: int, seed: int) -> Settings:
        """What `decode` takes. Raises InputError for values out of range."""
        budget = 0 if self.budget is None else self.budget
        return Settings(
            method=self.method,
            budget=budget,
            max_budget=budget,
            candidates=self.candidates if isinstance(self.candidates, int) else None,
            child_cap=self.child_cap,
            sampling=Sampling(self.temperature),
            max_new_tokens=max_new_tokens,
            seed=seed,
        )

    def __str__(self) -> str:
        """As a progress line names it."""
        read = [f"T={self.temperature:g}", f"budget {self.budget}" if self.budget is not None else ""]
        read.append(f"M={self.candidates}" if self.candidates is not None else "")
        return " ".join([self.method, *filter(None, read)])


@dataclass(frozen=True)
class Grid:
    """All values that are to be measured; each may be named more than once, and is measured once."""

    methods: Sequence[str]
    temperatures: Sequence[float] = (0.0,)
    budgets: Sequence[int] = (64,)
    candidates: Sequence[int | Literal["full"]] = (512,)
    child_cap: int | None = None

    def cells(self, fixed: frozenset[str] = frozenset()) -> list[Cell]:
        """Every cell once, the methods next to each other; methods in `fixed` read the temperature alone."""
        found = [
            self._cell(method, temperature, budget, candidates, method in CHAINS | fixed)
            for temperature in self.temperatures
            for budget in self.budgets
            for candidates in self.candidates
            for method in self.methods
        ]
        return list(dict.fromkeys(found))

    def _cell(self, method: str, temperature: float, budget: int, candidates: Candidates, bare: bool) -> Cell:
        if bare:
            return Cell(method, float(temperature), None, None, None)
        corrected = method not in UNCORRECTED
        return Cell(method, float(temperature), budget, candidates if corrected else None, self.child_cap)


def rotated(cells: Sequence[Cell], index: int) -> list[Cell]:
    """The cells in the order of prompt number `index`: begun elsewhere each time, so that no cell is always late.

    Steps of the golden section spread the beginnings evenly, however many prompts there are.
    """
    start = int(index * 0.6180339887 % 1 * len(cells))
    return [*cells[start:], *cells[:start]]


def digest(facts: dict[str, Any]) -> str:
    """SHA-256 of facts that JSON can hold, whatever their order."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def weights_sha256(model: nn.Module) -> str:
    """SHA-256 of all tensors of a model: names, types, shapes and bytes."""
    total = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
