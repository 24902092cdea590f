"""Which lanes a method's sweep runs on: Triton kernels where they serve it, its scorer's own operations elsewhere."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from torch import Tensor

from ..drafter import DominoHead, Draft, Drafter
from ..methods import METHODS, Settings
from .builders import LanesOf
from .sweep import Lanes, ScorerLanes

if TYPE_CHECKING:
    from .fused import FusedHead


def plain_lanes(drafter: Drafter, settings: Settings) -> LanesOf:
    """By the scorer of any method that drafts."""
    method = METHODS[settings.method]
    assert method is not None
    return lambda draft, anchor: ScorerLanes(method.scorer(drafter, draft, anchor, settings))


def fused_lanes(head: DominoHead, candidates: int | None) -> LanesOf:
    """The conditional correction by kernels. Raises ImportError without Triton."""
    from .fused import FusedLanes

    fused = fused_head(head)

    def lanes(draft: Draft, anchor: Tensor) -> Lanes:
        return FusedLanes(fused, draft, anchor, candidates)

    return lanes


@lru_cache(maxsize=2)  # its table takes as much memory as a large embedding
def fused_head(head: DominoHead) -> FusedHead:
    """A head's table, made once."""
    from .fused import FusedHead

    return FusedHead(head)


def served_by_kernels(drafter: Drafter, settings: Settings) -> bool:
    """Whether kernels can take the place of a method's scorer."""
    weight = drafter.model.get_parameter("fc.weight")
    capped = settings.child_cap is not None and settings.child_cap < settings.budget
    narrow = weight.is_cuda and weight.element_size() <= 4
    return settings.method == "dominotree" and narrow and not capped and find_spec("triton") is not None


def lanes_for(drafter: Drafter, settings: Settings) -> LanesOf:
    """The fastest lanes there are for a method."""
    if drafter.head is None or not served_by_kernels(drafter, settings):
        return plain_lanes(drafter, settings)
    return fused_lanes(drafter.head, settings.candidates)
