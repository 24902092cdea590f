"""The visible tests of a notebook's exercises. It knows what was asked for, and no notebook."""

from __future__ import annotations

import math
from typing import Any

TO_DO, PASSED = "to do", "passed"


def judge(name: str, found: Any, wanted: Any, tolerance: float = 1e-9) -> str:
    """One line on an answer: `to do` for None (the stub is as it was), `passed`, or what differs.

    Numbers are equal within `tolerance`, absolute and relative; lists and tuples item by item; all else by ==.
    It never raises for a wrong answer, so that a notebook runs on below an exercise that is not done yet.
    """
    if found is None:
        return f"{name}: {TO_DO}"
    return f"{name}: {PASSED}" if _equal(found, wanted, tolerance) else f"{name}: got {found!r}, wanted {wanted!r}"


def _equal(found: Any, wanted: Any, tolerance: float) -> bool:
    if isinstance(wanted, list | tuple):
        same_kind = isinstance(found, list | tuple) and len(found) == len(wanted)
        return same_kind and all(_equal(a, b, tolerance) for a, b in zip(found, wanted, strict=True))
    if isinstance(wanted, float) and isinstance(found, int | float):
        return math.isclose(found, wanted, rel_tol=tolerance, abs_tol=tolerance)
    return bool(found == wanted)
