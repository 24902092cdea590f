"""Recorded results: what a notebook shows where nothing is computed anew, and whether it is still true.

A recording is a JSON file: the data, and what they were made with (settings, target, hashes of the drafters'
weights). This file knows files, hashes and names. It does not know what the data mean, or how they are computed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .checkpoints import DRAFTERS
from .embedded import EMBEDDED, is_fetched
from .errors import InputError
from .files import write_text

FULL_VARIABLE, FOLDER_VARIABLE = "DOMINOTREE_FULL", "DOMINOTREE_TRACES"
TRACES = Path(__file__).resolve().parent.parent / "data" / "traces"


def fast() -> bool:
    """True, read recordings, unless the environment variable DOMINOTREE_FULL is set to something but 0."""
    return os.environ.get(FULL_VARIABLE, "0") in ("", "0")


def traces() -> Path:
    """The folder of all recordings: DOMINOTREE_TRACES where it is set, else data/traces."""
    moved = os.environ.get(FOLDER_VARIABLE)
    return Path(moved).expanduser() if moved else TRACES


@dataclass(frozen=True)
class Recording:
    """Data under a name. `made_with` has `settings`, `weights` (drafter -> SHA-256) and `target` (its SHA-256)."""

    name: str
    made_with: dict[str, Any]
    data: Any

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that the data were made with."""
        return dict(self.made_with["settings"])

    @classmethod
    def load(cls, name: str) -> Recording:
        """The recording of this name. Raises InputError, in one line, where there is none or it can't be read."""
        path = traces() / f"{name}.json"
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            made_with = {key: record["made_with"][key] for key in ("settings", "weights", "target")}
            return cls(name, made_with, record["data"])
        except OSError as error:
            raise InputError(f"{path}: can't be read ({error.strerror}): record it by {FULL_VARIABLE}=1") from error
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: not a recording: record it anew by {FULL_VARIABLE}=1") from error

    @classmethod
    def write(
        cls,
        name: str,
        data: Any,
        settings: dict[str, Any],
        drafters: Sequence[str] = (),
        target: str | None = None,
    ) -> Recording:
        """Store the data and return them as they are read back. Raises InputError where they can't be written."""
        made = cls.made(name, data, settings, drafters, target)
        content = {"made_with": made.made_with, "data": made.data}
        write_text(traces() / f"{name}.json", json.dumps(content, separators=(",", ":"), allow_nan=False) + "\n")
        return made

    @classmethod
    def made(
        cls, name: str, data: Any, settings: dict[str, Any], drafters: Sequence[str], target: str | None
    ) -> Recording:
        """As `write`, but without a file. Data and settings become what JSON makes of them: tuples are lists."""
        made_with = {"settings": settings, "weights": hashes(drafters), "target": _target_hash(target)}
        return cls(name, json.loads(json.dumps(made_with)), json.loads(json.dumps(data, allow_nan=False)))

    def stale(self, target: str | None, drafters: Sequence[str]) -> list[str]:
        """Why these data would come out otherwise today, a few words each; empty if they are fresh.

        Compares the shipped weights of the drafters and the record of the embedded target, both by name; no
        model is needed.
        """
        reasons = []
        if self.made_with["target"] != _target_hash(target):
            reasons.append(f"the target {target} is another one")
        now, then = hashes(drafters), self.made_with["weights"]
        for name in sorted(now.keys() | then.keys()):
            if name not in then or name not in now:
                reasons.append(f"the drafter {name} takes part in only one of them")
            elif now[name] != then[name]:
                reasons.append(f"the weights of {name} have changed")
        return reasons


def hashes(drafters: Sequence[str]) -> dict[str, str]:
    """SHA-256 over the config and weight files of each shipped drafter. Raises InputError for an unknown one."""
    return {name: _folder_hash(name) for name in drafters}


def _folder_hash(name: str) -> str:
    files = [*(DRAFTERS / name).glob("config.json"), *sorted((DRAFTERS / name).glob("*.safetensors"))]
    if len(files) < 2:
        raise InputError(f"drafter {name}: no config.json and weights in {DRAFTERS / name}")
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _target_hash(target: str | None) -> str | None:
    if target is not None and target not in EMBEDDED:
        raise InputError(f"no embedded model is called {target!r}; there is {', '.join(sorted(EMBEDDED))}")
    return EMBEDDED[target].sha256 if target else None


# --- What a notebook calls -----------------------------------------------------------------------------------


def obtain(
    name: str,
    settings: dict[str, Any],
    compute: Callable[[], Any],
    read: bool,
    drafters: Sequence[str] = (),
    target: str | None = None,
) -> Recording:
    """A notebook's data for these settings: read where that answers, computed where it does not.

    With `read` (FAST), the recording if its settings are these; else what `compute` gives, where the target is
    there (it is never fetched); else the recording with its own settings. Without (FULL), what `compute`
    gives, recorded again. Prints one line that says which, and why a recording is stale.
    """
    if not read:
        print(f"{name}: computed, and recorded again")
        return Recording.write(name, compute(), settings, drafters, target)
    recording, wanted = Recording.load(name), json.loads(json.dumps(settings))
    same = recording.settings == wanted
    if not same and (target is None or is_fetched(target)):
        print(f"{name}: not recorded for {_differing(wanted, recording.settings)}; computed here")
        return Recording.made(name, compute(), settings, drafters, target)
    reasons = recording.stale(target, drafters)
    if not same:
        reasons.insert(0, f"{target} is not fetched, so this is for {_differing(recording.settings, wanted)}")
    state = "STALE: " + "; ".join(reasons) if reasons else "up to date"
    print(f"{name}: read from the recording, {state}")
    return recording


def _differing(shown: dict[str, Any], against: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value!r}" for key, value in shown.items() if value != against.get(key))
