"""Files that appear whole or not at all. It does not know what stands in them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .errors import InputError


def check_writable(path: Path) -> None:
    """Make the folder that `path` is to lie in. Raises InputError where that, or a file there, is impossible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error.strerror) from error
    if path.is_dir():
        raise _unwritable(path, "it is a folder")
    if not os.access(path.parent, os.W_OK):
        raise _unwritable(path, "its folder is read-only")


def write_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a file beside `path`, which then takes its place in one step.

    Raises InputError where it can't be written, a full disk included; what was there before stays then.
    """
    check_writable(path)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")  # several processes may work in one folder
    try:
        write(part)
        os.replace(part, path)
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from error
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8."""
    write_file(path, lambda part: part.write_text(text, encoding="utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes as they are."""
    write_file(path, lambda part: part.write_bytes(content))


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON. Raises ValueError for a number that JSON has no name for."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def _unwritable(path: Path, reason: str | None) -> InputError:
    return InputError(f"{path}: can't be written ({reason}); choose another place")
