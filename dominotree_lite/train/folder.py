"""A folder that belongs to one set of settings, so that work goes on in it only under the same ones.

It knows neither what the settings mean nor what else lies in the folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import write_json

NAME = "settings.json"


def claim(folder: Path, settings: dict[str, Any]) -> None:
    """Make the folder and write `settings.json` into it, or check that it says the same.

    Raises InputError naming the settings that differ, or the file if it can't be read.
    """
    path = folder / NAME
    wanted = json.loads(json.dumps(settings))  # tuples read back as lists
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, wanted)
        return
    try:
        found = dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path}: can't be read ({error}); delete it or use another folder") from error
    different = sorted(key for key in found.keys() | wanted if found.get(key) != wanted.get(key))
    if different:
        raise InputError(f"{folder}: was begun with other {', '.join(different)}; use another folder")
