"""Plain JSON values read as dataclasses, strictly: what a field may be stands in the dataclasses alone.

Fields may be integers, numbers, texts, one of a few texts (Literal), lists, dicts with texts or numbers as keys,
dataclasses, named tuples (as lists), and None where the type says so. This file knows no format and no file.
"""

from __future__ import annotations

import dataclasses
import math
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from .errors import InputError

_LARGEST = 2**53  # integers above are not exact in JavaScript, nor as a number of JSON elsewhere
_NAMES: dict[type, str] = {int: "an integer", float: "a number", str: "a text", list: "a list", dict: "an object"}


def read(kind: Any, value: Any, where: str = "") -> Any:
    """The value as this type; `where` is its place in the whole. Raises InputError, in one line with the place."""
    origin, inner = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return kind(**_fields(_hints(kind), value, where))
    if isinstance(kind, type) and issubclass(kind, tuple):
        return kind(*_row(_hints(kind), value, where))
    if origin is list:
        values = _of_type(list, value, where)
        if _all_plain(inner[0], values):  # the same answer as below, without a place for each number
            return list(values)
        return [read(inner[0], one, f"{where}[{at}]") for at, one in enumerate(values)]
    if origin is dict:
        values = _of_type(dict, value, where)
        return {
            _key(inner[0], key, where): read(inner[1], one, f"{where}[{shown(key)}]") for key, one in values.items()
        }
    if origin is Literal:
        return _choice(inner, value, where)
    if type(None) in inner:
        return None if value is None else _either([one for one in inner if one is not type(None)], value, where)
    return _plain(kind, value, where)


def no_number(name: str) -> float:
    """For `json.loads(..., parse_constant=)`: NaN and infinities are refused."""
    raise InputError(f"it holds {name}, which is no number: record it again")


def shown(value: Any) -> str:
    """A value on one line, however long or strange."""
    text = ascii(value) if not isinstance(value, int) or abs(value) < 10**30 else "a huge integer"
    return text if len(text) <= 40 else f"{text[:37]}..."


def _either(kinds: list[Any], value: Any, where: str) -> Any:
    """Of the type that the value fits; the last one says what is wrong if none does."""
    for kind in kinds[:-1]:
        try:
            return read(kind, value, where)
        except InputError:
            continue
    return read(kinds[-1], value, where)


def _row(hints: dict[str, Any], value: Any, where: str) -> list[Any]:
    kinds = [*map(type, value)] if type(value) is list else []
    if kinds == [*hints.values()] and set(kinds) == {int, float}:
        if max(map(abs, value)) < _LARGEST and all(map(math.isfinite, value)):
            return list(value)  # a file has thousands of these; below, what is wrong is found
    if len(_of_type(list, value, where)) != len(hints):
        raise InputError(f"{where} has {len(value)} numbers: give {', '.join(hints)}")
    return [read(hint, one, where) for hint, one in zip(hints.values(), value, strict=True)]


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _fields(hints: dict[str, Any], value: Any, where: str) -> dict[str, Any]:
    record = _of_type(dict, value, where)
    for name in hints:
        if name not in record:
            raise InputError(f"{where or 'it'} has no {name}")
    if strange := sorted(record.keys() - hints.keys()):
        raise InputError(f"{where or 'it'} has {shown(strange[0])}, which this version does not know")
    return {name: read(hint, record[name], f"{where}.{name}".lstrip(".")) for name, hint in hints.items()}


def _all_plain(kind: Any, values: list[Any]) -> bool:
    if kind is int:
        return set(map(type, values)) == {int} and max(map(abs, values)) < _LARGEST
    return kind is float and set(map(type, values)) == {float} and all(map(math.isfinite, values))


def _choice(texts: tuple[Any, ...], value: Any, where: str) -> Any:
    if value not in texts:
        raise InputError(f"{where} is {shown(value)}: give {' or '.join(texts)}")
    return value


def _plain(kind: Any, value: Any, where: str) -> Any:
    if kind is float and type(value) is int and abs(value) < _LARGEST:
        return float(value)
    if type(value) is not kind:  # True is an int to isinstance
        raise InputError(f"{where} is {shown(value)}: give {_NAMES[kind]}")
    if kind is float and not math.isfinite(value):
        raise InputError(f"{where} is {value}: give a finite number")
    if kind is int and abs(value) >= _LARGEST:
        raise InputError(f"{where} is {shown(value)}: give an integer below 2^53")
    if kind is str and value != value.encode("utf-8", "ignore").decode():
        raise InputError(f"{where} has half a surrogate pair, which is no text")
    return value


def _of_type(kind: type, value: Any, where: str) -> Any:
    if type(value) is not kind:
        raise InputError(f"{where or 'it'} is {shown(value)}: give {_NAMES[kind]}")
    return value


def _key(kind: type, key: str, where: str) -> Any:
    if kind is str:
        return _plain(str, key, where)
    if not (key.isascii() and key.isdigit() and len(key) < 17 and str(int(key)) == key):
        raise InputError(f"{where} has the key {shown(key)}: give a whole number")
    return int(key)
