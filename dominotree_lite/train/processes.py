"""The processes of one launch (`accelerate launch`, `torchrun`): whose device is which, and what all agree on.

One process is the ordinary case, and nothing here costs it anything. This file does not know what is trained.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from ..errors import InputError

if TYPE_CHECKING:
    from accelerate import Accelerator


def own_device(given: str | None, gpus: int) -> str | None:
    """The name of this process's device: a launched process has the GPU of its number, where there are GPUs.

    A `given` device stays, unless it is `cuda`, which leaves the number open. Elsewhere `given` comes back.
    """
    if given is None and os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true"):
        return "cpu"
    number = os.environ.get("LOCAL_RANK")
    return f"cuda:{number}" if number is not None and gpus and given in (None, "cuda") else given


def join(mixed_precision: str, device: torch.device) -> Accelerator:
    """Accelerate on the device where the target lies, with the other processes if there are any.

    Raises InputError where Accelerate is missing, or would train on another device.
    """
    try:
        from accelerate import Accelerator
    except ModuleNotFoundError as error:
        raise InputError("training needs accelerate: pip install 'dominotree_lite[train]'") from error
    accelerator = Accelerator(mixed_precision=mixed_precision, cpu=device.type == "cpu")
    here, there = ((d.type, d.index or 0) for d in (device, accelerator.device))
    if here != there:  # a target on a GPU that is not the process's own
        raise InputError(f"the target lies on {device}, Accelerate trains on {accelerator.device}: make them one")
    return accelerator


def as_main_says(accelerator: Accelerator, wish: bool) -> bool:
    """The main process's wish, in every process: clocks differ, and all must stop at the same step."""
    if accelerator.num_processes == 1:
        return wish
    from accelerate.utils import broadcast

    return bool(broadcast(torch.tensor(int(wish), device=accelerator.device)).item())


def is_main() -> bool:
    """True in the one process that prints and writes."""
    from accelerate import PartialState

    return bool(PartialState().is_main_process)


def leave() -> None:
    """End the group of processes in an orderly way, when nothing more is to be done together."""
    from accelerate import PartialState

    PartialState().destroy_process_group()
