"""The ablation grid: what is varied, by configuration alone. This file trains nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InputError
from .loop import TrainConfig
from .recipe import KINDS, DrafterSizes


@dataclass(frozen=True)
class Variant:
    """One row of the grid.

    Attributes:
        name: of the row, also the name of its folder.
        kind: of the drafter, "domino" or "dflash" (no head).
        recipe: fields of TrainConfig that differ from the run's own.
        sizes: fields of DrafterSizes that differ.
        files: patterns of corpus file names; all files without any.
        start: a drafter (shipped, folder or hub id) to go on from; its own layout then holds.
        on_policy: rows whose anchors are the places where the drafter `start` itself begins its rounds; 0: random
            anchors everywhere.
        share: of the seconds a row gets; 0 measures `start` as it is.
    """

    name: str
    kind: str = "domino"
    recipe: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    start: str | None = None
    on_policy: int = 0
    share: float = 1.0

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name:
            raise InputError(f"variant {self.name!r}: give it a name that can be a folder's")
        if self.kind not in KINDS:
            raise InputError(f"variant {self.name}: no kind {self.kind!r}; there are {', '.join(KINDS)}")
        if not self.start and (self.on_policy or self.share == 0):
            raise InputError(f"variant {self.name}: on_policy and a share of 0 need a drafter to start from")
        for make, fields in ((TrainConfig, self.recipe), (DrafterSizes, self.sizes)):
            try:
                make(**fields)
            except TypeError as error:
                raise InputError(f"variant {self.name}: {error}") from error
        if self.on_policy < 0 or self.share < 0:
            raise InputError(f"variant {self.name}: on_policy and share are 0 or more")


PUBLISHED = {"base_floor": 0.0}  # lambda from 1 to 0; the shipped recipe stops at 0.1

GRID = (
    # The claims of the papers (two seeds or more)
    Variant("published", recipe=PUBLISHED),
    Variant("no-head", kind="dflash"),
    Variant("training-time-test", recipe=PUBLISHED | {"prefix": "drafted"}),
    Variant("no-curriculum", recipe={"base_start": 0.0, "base_floor": 0.0}),
    Variant("floor-0.1"),
    # The curriculum, further
    Variant("base-only", recipe={"base_floor": 1.0}),
    Variant("floor-0.3", recipe={"base_floor": 0.3}),
    # What the labels are and how they weigh
    Variant("soft-labels", recipe={"labels": "soft"}),
    Variant("argmax-labels", recipe={"labels": "argmax"}),
    Variant("reached", recipe={"depth_weights": "reached"}),
    Variant("gamma-4", recipe={"gamma": 4.0}),
    Variant("gamma-15", recipe={"gamma": 15.0}),
    # Layout and batch
    Variant("no-shift", sizes={"shift": False}),
    Variant("rank-48", sizes={"rank": 48}),
    Variant("rank-192", sizes={"rank": 192}),
    Variant("gru-384", sizes={"gru": 384}),
    Variant("layers-3", sizes={"layers": 3}),
    Variant("layers-7", sizes={"layers": 7}),
    Variant("anchors-16", recipe={"anchors": 16}),
    Variant("anchors-64", recipe={"anchors": 64, "rows": 24}),
)


def load_grid(path: Path) -> tuple[Variant, ...]:
    """Variants from a JSON file: a list of objects with the fields of Variant. Raises InputError for anything else."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        variants = tuple(Variant(**{**entry, "files": tuple(entry.get("files", ()))}) for entry in entries)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not a list of variants ({error})") from error
    names = [variant.name for variant in variants]
    if not names or len(set(names)) != len(names):
        raise InputError(f"{path}: give one variant or more, each with a name of its own")
    return variants


def choose(grid: tuple[Variant, ...], names: list[str] | None) -> list[Variant]:
    """The named variants in the order named; all without names. Raises InputError for an unknown one."""
    known = {variant.name: variant for variant in grid}
    if strange := [name for name in names or () if name not in known]:
        raise InputError(f"no variant {strange[0]!r}; there are {', '.join(known)}")
    return [known[name] for name in names or known]
