"""Pictures of trees and results. The core never imports this.

The names below are loaded when first used: still pictures need matplotlib, the theatre anywidget.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .results import reliability, stage_bars
    from .style import save, show
    from .theatre import TreeTheatre
    from .trees import compare_trees, describe, draw_tree
    from .verification import mask

__all__ = [
    "TreeTheatre",
    "compare_trees",
    "describe",
    "draw_tree",
    "mask",
    "reliability",
    "save",
    "show",
    "stage_bars",
]

_HOMES = {
    "TreeTheatre": "theatre",
    "compare_trees": "trees",
    "describe": "trees",
    "draw_tree": "trees",
    "mask": "verification",
    "reliability": "results",
    "save": "style",
    "show": "style",
    "stage_bars": "results",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
