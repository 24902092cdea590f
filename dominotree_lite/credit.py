"""What a score is worth: a map from scores to chances of acceptance, kept beside the drafter it was fitted to.

A score says how likely the drafter thinks a path is; real rounds say how often such a path was accepted. The map is a
few numbers in `calibration.json`, one fit for each temperature and number of candidates, with the weights' hash: a map
of other weights is refused. This file fits nothing (fits.py does).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .budget import Floats
from .checkpoints import drafter_folder
from .drafter import Drafter
from .errors import InputError
from .files import write_json

FILE, FORMAT = "calibration.json", 1


@dataclass(frozen=True)
class Credit:
    """Lines between knots (promised, accepted), from (0, 0) on; above the last knot its own value holds.

    It never falls, so it keeps the order of nodes and any prefix of a best-first tree stays one. Raises InputError
    for knots that do not ascend in (0, 1], or chances that fall or leave [0, 1].
    """

    promised: tuple[float, ...]  # probabilities of paths, by the drafter [K]
    accepted: tuple[float, ...]  # shares of them that the target took [K]

    def __post_init__(self) -> None:
        knots, values = np.array([0.0, *self.promised]), np.array([0.0, *self.accepted])
        fine = len(knots) == len(values) > 1 and (np.diff(knots) > 0).all() and (np.diff(values) >= 0).all()
        if not fine or knots[-1] > 1 or values[-1] > 1:
            raise InputError("a calibration's knots must ascend, and its chances never fall, both within 0 and 1")

    def __call__(self, scores: Floats) -> Floats:
        """Chances of scores (log-probabilities of paths), both [n]."""
        found: Floats = np.interp(np.exp(scores), [0.0, *self.promised], [0.0, *self.accepted])
        return found


IDENTITY = Credit((1.0,), (1.0,))  # scores at their word


@dataclass(frozen=True)
class Fit:
    """A map and what it was fitted on: rounds at this temperature, among this many candidates (None: all)."""

    credit: Credit
    temperature: float
    candidates: int | None
    rounds: int


def weights_sha256(folder: Path) -> str:
    """Of all weight files of a drafter, in the order of their names."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def save_credit(drafter: Drafter, fit: Fit) -> Path:
    """Write a fit beside the drafter, in place of one of the same temperature and candidates; returns the file.

    Fits of other weights are dropped. Raises InputError where the drafter has no folder or that can't be written.
    """
    folder = drafter_folder(drafter.name)
    sha = weights_sha256(folder)
    content = _read(folder / FILE) if (folder / FILE).is_file() else {}
    before = content["fits"] if content.get("drafter_sha256") == sha else []
    kept = [one for one in before if (one["temperature"], one["candidates"]) != (fit.temperature, fit.candidates)]
    new = {
        "temperature": fit.temperature,
        "candidates": fit.candidates,
        "rounds": fit.rounds,
        "promised": list(fit.credit.promised),
        "accepted": list(fit.credit.accepted),
    }
    write_json(folder / FILE, {"format": FORMAT, "drafter_sha256": sha, "fits": [*kept, new]})
    return folder / FILE


def load_credit(drafter: Drafter, temperature: float, candidates: int | None) -> Credit:
    """The map fitted at this temperature and M. Raises InputError where there is none, or it is of other weights."""
    command = f"run dominotree calibrate --drafter {drafter.name} --temperature {temperature:g} --candidates "
    command += "full" if candidates is None else str(candidates)
    path = drafter_folder(drafter.name) / FILE
    if not path.is_file():
        raise InputError(f"drafter {drafter.name} has no map from scores to chances yet: {command}")
    content = _read(path)
    if content["drafter_sha256"] != weights_sha256(path.parent):
        raise InputError(f"{path}: fitted to other weights than lie beside it: {command}")
    for one in content["fits"]:
        if (one["temperature"], one["candidates"]) == (temperature, candidates):
            return _credit(one, path)
    raise InputError(f"{path}: no map for this temperature and number of candidates: {command}")


def _read(path: Path) -> Any:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        right = content["format"] == FORMAT and isinstance(content["drafter_sha256"], str)
        if not right or any(not {"temperature", "candidates"} <= set(one) for one in content["fits"]):
            raise ValueError("another format")
        return content
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a calibration ({error}); remove it and run dominotree calibrate") from error


def _credit(one: dict[str, Any], path: Path) -> Credit:
    try:
        return Credit(tuple(map(float, one["promised"])), tuple(map(float, one["accepted"])))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not a calibration ({error}); remove it and run dominotree calibrate") from error
