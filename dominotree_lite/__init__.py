"""DominoTree Lite: draft trees for speculative decoding, to read, to run and to take apart.

import dominotree_lite as dt
target = dt.load_target("smollm2")
drafter = dt.load_drafter("smollm2-domino", target)
result = dt.generate("Why is the sky blue?", target, drafter, method="dominotree", budget=64)
result.text, result.tau, result.rounds
"""

from .checkpoints import load_drafter, load_target
from .decode import METHODS, Result, Round, generate
from .errors import InputError
from .tree import DraftTree

__all__ = ["METHODS", "DraftTree", "InputError", "Result", "Round", "generate", "load_drafter", "load_target"]
__version__ = "0.1.0"
