"""What a round costs on this machine: a fitted model, and where it is kept. It measures nothing itself.

`profiling.py` makes one; it is stored in the user's cache under a key of everything the seconds depend on, so that a
profile of another machine, precision or version of PyTorch is never taken for this one's.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from .budget import Floats
from .drafter import Drafter
from .embedded import cache_dir
from .errors import InputError
from .files import write_json
from .packed import is_packed
from .target import Target

FORMAT = 1


@dataclass(frozen=True)
class RoundCosts:
    """Seconds of a round's parts. Contexts and nodes ascend; nodes start at 0 and never count the root.

    Between contexts it interpolates, outside it holds the nearest; beyond the last node it goes on as before it.
    Raises InputError for sizes that do not fit, and for seconds that are negative or no numbers.
    """

    contexts: tuple[int, ...]  # committed tokens [C]
    nodes: tuple[int, ...]  # [G]
    draft_seconds: tuple[float, ...]  # [C]
    verify_seconds: tuple[tuple[float, ...], ...]  # [C][G], commit included; never falling and convex along nodes
    build_start: float  # building, whatever is grown
    build_depth: float  # for each depth scored
    build_lane: float  # for each parent scored

    def __post_init__(self) -> None:
        contexts, nodes, drafts = (np.array(getattr(self, f)) for f in ("contexts", "nodes", "draft_seconds"))
        table = np.array(self.verify_seconds, float)
        rising = all((np.diff(each) > 0).all() for each in (contexts, nodes))
        if not rising or not len(contexts) or len(nodes) < 2 or nodes[0] != 0:
            raise InputError("round costs: contexts and nodes must ascend, and nodes start at 0")
        if table.shape != (len(contexts), len(nodes)) or drafts.shape != contexts.shape:
            raise InputError("round costs: the seconds are not one a context, and one a context and number of nodes")
        building = np.array([self.build_start, self.build_depth, self.build_lane])
        if not all((np.isfinite(each) & (each >= 0)).all() for each in (table, drafts, building)):
            raise InputError("round costs: seconds must be 0 or more")

    def draft(self, context: int) -> float:
        """Of one draft after so many committed tokens."""
        return float(np.interp(context, self.contexts, self.draft_seconds))

    def build(self, depths: int, lanes: int) -> float:
        """Of growing so many depths with so many parents scored in all."""
        return self.build_start + self.build_depth * depths + self.build_lane * lanes

    def verify(self, nodes: int, context: int) -> Floats:
        """[nodes + 1]: of verifying 0, 1, ... nodes below the root, and committing."""
        place = np.interp(context, self.contexts, np.arange(len(self.contexts)))  # among the contexts
        low = min(int(place), len(self.contexts) - 2) if len(self.contexts) > 1 else 0
        rows = np.array(self.verify_seconds[low : low + 2])
        grid = rows[0] + (place - low) * (rows[-1] - rows[0])
        wanted, last = np.arange(nodes + 1), self.nodes[-1]
        slope = (grid[-1] - grid[-2]) / (last - self.nodes[-2])
        found: Floats = np.interp(wanted, self.nodes, grid) + slope * np.maximum(wanted - last, 0)
        return found

    def to_json(self) -> dict[str, Any]:
        """Its fields, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Any) -> RoundCosts:
        """What `to_json` wrote. Raises InputError for anything else."""
        names = {field.name for field in fields(cls)}
        if not isinstance(content, dict) or set(content) != names:
            raise InputError(f"round costs: give {', '.join(sorted(names))}, and nothing else")
        try:
            return cls(
                contexts=tuple(map(int, content["contexts"])),
                nodes=tuple(map(int, content["nodes"])),
                draft_seconds=tuple(map(float, content["draft_seconds"])),
                verify_seconds=tuple(tuple(map(float, row)) for row in content["verify_seconds"]),
                build_start=float(content["build_start"]),
                build_depth=float(content["build_depth"]),
                build_lane=float(content["build_lane"]),
            )
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"round costs: not numbers ({error})") from error


# --- Where profiles are kept -----------------------------------------------------------------------------------


def station(target: Target, drafter: Drafter) -> dict[str, Any]:
    """Everything a profile is valid for: models, precision, machine, software."""
    return {
        "target": target.name,
        "drafter": drafter.name,
        "dtype": str(target.dtype).removeprefix("torch."),
        "linear": "packed" if is_packed(target.model) else "plain",
        "device": torch.cuda.get_device_name(target.device) if target.device.type == "cuda" else target.device.type,
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _processor() -> str:
    """The processor's model; `platform` knows only its family on Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def profile_path(target: Target, drafter: Drafter) -> Path:
    """The file that this machine's profile of the two is kept in."""
    key = json.dumps(station(target, drafter), sort_keys=True)
    return cache_dir() / "profiles" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def save_costs(costs: RoundCosts, measured: dict[str, Any], target: Target, drafter: Drafter) -> Path:
    """Keep a profile, with the medians it was fitted to, for `load_costs`; returns the file."""
    path = profile_path(target, drafter)
    where = station(target, drafter)
    write_json(path, {"format": FORMAT, "station": where, "costs": costs.to_json(), "measured": measured})
    return path


def load_costs(target: Target, drafter: Drafter) -> RoundCosts:
    """This machine's profile of the two. Raises InputError where there is none, or none that can be read."""
    path = profile_path(target, drafter)
    command = f"dominotree profile --target {target.name} --drafter {drafter.name}"
    if not path.is_file():
        raise InputError(f"adaptive budgets need this machine's costs: run {command}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.get("format") != FORMAT:
            raise InputError(f"format {content.get('format')!r}, wanted {FORMAT}")
        return RoundCosts.from_json(content.get("costs"))
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: not a profile ({error}); run {command} again") from error
