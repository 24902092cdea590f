"""Draft trees for speculative decoding, to read, to run and to take apart.

    import dominotree_lite as dt
    target = dt.load_target("smollm2")
    drafter = dt.load_drafter("smollm2-domino", target)
    result = dt.generate("Why is the sky blue?", target, drafter, method="dominotree", budget=64)
    result.text, result.tau, result.rounds

The names below are loaded when first used, so that `dominotree --help` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import InputError

if TYPE_CHECKING:
    from .checkpoints import load_drafter, load_target
    from .decode import Result, Round, generate
    from .methods import METHODS
    from .tree import DraftTree

__all__ = ["METHODS", "DraftTree", "InputError", "Result", "Round", "generate", "load_drafter", "load_target"]
__version__ = "0.1.0"

_HOMES = {
    "DraftTree": "tree",
    "METHODS": "methods",
    "Result": "decode",
    "Round": "decode",
    "generate": "decode",
    "load_drafter": "checkpoints",
    "load_target": "checkpoints",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
