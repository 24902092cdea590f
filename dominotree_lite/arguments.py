"""What all commands share: the parser, options of the target and the device, and the target they name.

It imports what is heavy only when needed, so that --help is quick.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from .errors import InputError

if TYPE_CHECKING:
    from .target import Target

DTYPES = ("float32", "bfloat16", "float16")  # names that need no torch
ENGINES = ("eager", "graph")  # a test holds them to methods.py
DEFAULT_TARGET = "smollm2"


class Parser(argparse.ArgumentParser):
    """argparse that reports a mistake as one line, and as an exception."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")


class Help(argparse.ArgumentDefaultsHelpFormatter):
    """Every default is shown, except where the help already says what happens without the option."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None or action.default is False else super()._get_help_string(action)


Commands = argparse._SubParsersAction


def add_command(commands: Commands[Parser], name: str, run: Callable[[argparse.Namespace], None], text: str) -> Parser:
    parser = commands.add_parser(name, help=text, description=text, formatter_class=Help)
    parser.set_defaults(run=run)
    return parser


def add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default=DEFAULT_TARGET, metavar="NAME", help="smollm2, a folder or a hub id")


def add_device(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--device", metavar="D", help="cpu, cuda or cuda:N (cuda where there is one)")
    add("--dtype", choices=DTYPES, help="of all models (float32 on a CPU, bfloat16 on a GPU)")
    add("--linear", choices=("packed", "plain"), default="packed",
        help="float32 linear layers on a CPU: weights laid out for oneDNN, or PyTorch's own product")  # fmt: skip
    add("--threads", type=int, metavar="N", help="CPU threads (what torch chooses)")


def add_engine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--engine", choices=ENGINES, default="eager",
        help="eager: operation by operation; graph: a round as captured CUDA graphs (uncaptured on a CPU)")  # fmt: skip


def load_target_of(arguments: argparse.Namespace) -> Target:
    """The target on its device. What libraries say of themselves on the way is not the command's output."""
    import torch
    import transformers

    from .checkpoints import load_target

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if arguments.threads is not None:
        if arguments.threads < 1:
            raise InputError(f"threads {arguments.threads} is too small: give 1 or more")
        torch.set_num_threads(arguments.threads)
    _check_device(arguments.device, torch.cuda.device_count())
    dtype = getattr(torch, arguments.dtype) if arguments.dtype else None
    return load_target(arguments.target, arguments.device, dtype, arguments.linear)


def _check_device(name: str | None, gpus: int) -> None:
    if name is None or name == "cpu":
        return
    form = re.fullmatch(r"cuda(?::(\d+))?", name)
    if form is None:
        raise InputError(f"device {name}: give cpu, cuda or cuda:N")
    if int(form[1] or 0) >= gpus:
        raise InputError(f"device {name}: torch sees {gpus} CUDA devices here; give cpu, or another number")
