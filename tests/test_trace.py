"""The trace format: what is written comes back, and whatever is not such a file is refused in one line."""

import copy
import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from traced import SETTINGS, toy_trace

from dominotree_lite import trace as format
from dominotree_lite.errors import InputError
from dominotree_lite.trace import Trace

HOSTILE = [
    '</script><script>alert("x")</script>',
    "<img src=x onerror=alert(1)>",
    "\"'`\\",
    "\n\r\t\x00\x1b[31m",
    "\u2028\u2029",
    "\N{FAMILY}\u200d\N{WOMAN}\N{EMOJI MODIFIER FITZPATRICK TYPE-6}",
    "e\u0301\u0323\u0489",
    "\u202eשלום\u202c مرحبا",
    "\ufffd\ufeff",
    "${x} {{x}} %s &lt;",
    "",
]


@cache
def small_trace() -> Trace:
    return toy_trace(replace(SETTINGS, budget=8, max_new_tokens=9))


@cache
def text_of_small() -> str:
    return json.dumps(small_trace().to_json())


def content() -> dict[str, Any]:
    return json.loads(text_of_small())


def refused(path: Path, text: str | bytes) -> str:
    """The one line with which a file of this content is refused."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as caught:
        Trace.load(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: ") and line.isprintable() and len(line) < 300 + len(str(path))
    return line.removeprefix(f"{path}: ")


# --- There and back --------------------------------------------------------------------------------------------


def test_a_trace_survives_its_file(tmp_path: Path) -> None:
    small_trace().save(tmp_path / "new" / "trace.json")
    assert Trace.load(tmp_path / "new" / "trace.json") == small_trace() == Trace.from_json(content())
    stored = json.loads((tmp_path / "new" / "trace.json").read_text(encoding="utf-8"))
    assert stored == content()
    assert (stored["format"], stored["version"]) == ("dominotree-trace", 1)


def test_the_object_is_what_the_format_says() -> None:
    stored = content()
    assert list(stored) == [
        "format", "version", "target", "drafter", "settings", "temperatures", "candidates", "vocabulary", "methods",
        "prompts",
    ]  # fmt: skip
    one = stored["prompts"][0]["rounds"][0]
    assert list(one) == [
        "start", "anchor", "context_length", "emitted", "nodes", "target", "logits", "log_normalisers", "choice",
        "trees", "accepted", "bonus", "children",
    ]  # fmt: skip
    assert [method["name"] for method in stored["methods"]] == ["marginal", "greedypath", "dominotree"]
    assert list(one["trees"]["marginal"]) == ["16", "20"]
    assert all(len(str(value).partition(".")[2]) <= 4 for value in one["target"])


def test_hostile_texts_come_back_literally(tmp_path: Path) -> None:
    vocabulary = {token: HOSTILE[token % len(HOSTILE)] for token in small_trace().vocabulary}
    assert set(vocabulary.values()) == set(HOSTILE)
    prompt = replace(small_trace().prompts[0], prompt="".join(HOSTILE), id=HOSTILE[0])
    hostile = replace(small_trace(), vocabulary=vocabulary, prompts=[prompt], target=HOSTILE[3], drafter=HOSTILE[2])
    hostile.save(tmp_path / "trace.json")
    assert Trace.load(tmp_path / "trace.json") == hostile


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json"
    path.write_text("before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(InputError, match="No space left"):
        patched.setattr(os, "replace", full)
        small_trace().save(path)
    monkeypatch.setattr(format, "MOST_BYTES", 1000)
    with pytest.raises(InputError, match="record fewer rounds"):
        small_trace().save(path)
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


# --- Every field -----------------------------------------------------------------------------------------------

Place = tuple[str | int, ...]


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    """Each place of an object once a kind of place: of a list, the first and the last."""
    if at:
        yield at
    keys = list(value) if isinstance(value, dict) else sorted({0, len(value) - 1}) if isinstance(value, list) else []
    for key in keys if isinstance(value, dict) else [key for key in keys if value]:
        yield from places(value[key], (*at, key))


def kind_of(place: Place) -> Place:
    """The place without numbers, by which a test picks one of many alike."""
    return tuple("*" if isinstance(key, int) or key.isdigit() else key for key in place)


def one_of_each() -> list[Place]:
    seen: dict[Place, Place] = {}
    for place in places(content()):
        seen[kind_of(place)] = place  # the last, which is the deepest in a tree
    return list(seen.values())


def changed(place: Place, change: Callable[[Any, Any], None]) -> str:
    """The file with one place changed; `change` gets its container and its key."""
    whole = content()
    container = whole
    for key in place[:-1]:
        container = container[key]
    change(container, place[-1])
    return json.dumps(whole)


def at(place: Place) -> Any:
    value: Any = content()
    for key in place:
        value = value[key]
    return value


def put(value: Any) -> Callable[[Any, Any], None]:
    return lambda container, key: container.__setitem__(key, value)


def test_every_place_refuses_other_types(tmp_path: Path) -> None:
    others: list[Any] = [
        "text",
        True,
        None,
        [],
        {},
        [[]],
        {"a": 1},
        1.5,
        10**400,
        float("nan"),
        float("-inf"),
        "\ud800",
    ]
    tried = 0
    for place in one_of_each():
        there = at(place)
        for other in others:
            same = type(other) is type(there) or (isinstance(other, float) and isinstance(there, int | float))
            allowed = (same and other == other != float("-inf") and other != "\ud800") or (
                place[-1] == "child_cap" and other is None
            )
            if not allowed or place[-1] == "format":
                refused(tmp_path / "x.json", changed(place, put(other)))
                tried += 1
    assert tried > 500


def test_every_field_is_needed_and_no_other_known(tmp_path: Path) -> None:
    objects = [place for place in [(), *one_of_each()] if isinstance(at(place), dict) and at(place)]
    assert len(objects) > 12
    for place in objects:
        keys = list(at(place))
        if keys[0].isdigit() and place[-1] in ("children", "vocabulary"):
            continue  # a node need not have its children's distribution
        for key in keys:
            line = refused(tmp_path / "x.json", changed((*place, key), lambda container, key: container.pop(key)))
            assert key in line or place[-1] in ("log_normalisers", "16", "20") or key in ("16", "20"), line
        line = refused(tmp_path / "x.json", changed((*place, "colour"), put(1)))
        assert "'colour'" in line or "not for exactly" in line or "is 1: give" in line


def test_a_field_is_named_by_its_whole_place(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    place = ("prompts", 0, "rounds", 1, "trees", "marginal", "20", "scores", 2)
    assert refused(path, changed(place, put("x"))) == (
        "prompts[0].rounds[1].trees['marginal']['20'].scores[2] is 'x': give a number"
    )
    assert refused(path, changed(("settings", "seed"), lambda c, key: c.pop(key))) == "settings has no seed"
    assert refused(path, changed(("prompts", 0, "colour"), put(1))) == (
        "prompts[0] has 'colour', which this version does not know"
    )


# --- Sense -----------------------------------------------------------------------------------------------------

R = ("prompts", 0, "rounds", 0)
T = (*R, "trees", "dominotree", "20")


def swap(a: int, b: int) -> Callable[[Any, Any], None]:
    def change(container: Any, key: Any) -> None:
        row = container[key]
        row[a], row[b] = row[b], row[a]

    return change


def add(value: Any) -> Callable[[Any, Any], None]:
    return lambda container, key: container[key].append(value)


def drop(container: Any, key: Any) -> None:
    container[key].pop()


BAD: list[tuple[Place, Callable[[Any, Any], None], str]] = [
    (("version",), put(2), "version 2; only version 1 can be read"),
    (("version",), put("1"), "version '1'"),
    (("format",), put("bertviz"), "not a trace"),
    (("settings", "budget"), put(-1), "settings.budget is -1: give 0 or more"),
    (("settings", "budget"), put(3), "more than the budget"),
    (("settings", "candidates"), put(17), "settings.candidates 17 is none of [16, 20]"),
    (("settings", "temperature"), put(-0.5), "settings.temperature is -0.5"),
    (("temperatures",), put([1.0, 0.5, 0.7, 1.5]), "ascending order"),
    (("temperatures",), put([0.0, 0.5, 0.7, 1.5]), "above 0"),
    (("temperatures",), drop, "log_normalisers: give 3 each"),
    (("candidates",), put([16, 20, 30]), "not for exactly the candidates"),
    (("methods",), drop, "methods are"),
    (("methods", 0, "name"), put("dominotree"), "methods are"),
    (("methods", 0, "name"), put("__proto__"), "methods are"),
    (("prompts",), put([]), "prompts: give one or more"),
    (("prompts", 0, "rounds"), put([]), "prompts[0] has no round"),
    (("prompts",), lambda c, key: c[key].append(c[key][0]), "with ids that differ"),
    (("prompts", 0, "rounds"), swap(0, 1), "does not go on where the round before it ended"),
    ((*R, "context_length"), put(0), "context_length is too small"),
    ((*R, "emitted"), put([]), "emitted is not what was accepted"),
    ((*R, "emitted"), add(7), "emitted is not what was accepted"),
    ((*R, "anchor"), put(7), "node 0 is not the anchor"),
    ((*R, "nodes", "parents", 0), put(0), "node 0 is not the anchor with parent -1"),
    ((*R, "nodes", "parents", 3), put(3), "node 3 does not come after its parent"),
    ((*R, "nodes", "parents", 3), put(5), "node 3 does not come after its parent"),
    ((*R, "nodes", "parents", 3), put(-1), "node 3 does not come after its parent"),
    ((*R, "nodes", "parents", 3), put(10**9), "node 3 does not come after its parent"),
    ((*R, "nodes", "depths", 3), put(9), "node 3 has a wrong depth"),
    ((*R, "nodes", "tokens", -1), put(999), "is taken, but was never pushed"),
    ((*R, "nodes", "tokens"), drop, "differ in length"),
    ((*R, "choice"), drop, "differ in length"),
    ((*R, "target", 1), put(0.5), "target has a log-probability above 0"),
    ((*R, "target", 0), put(-1.0), "with parent -1 and zeros"),
    ((*R, "log_normalisers", "01"), put([1.0] * 4), "has the key '01'"),
    ((*R, "log_normalisers", "-1"), put([1.0] * 4), "has the key '-1'"),
    ((*R, "log_normalisers", "\u0661"), put([1.0] * 4), "has the key '\\u0661'"),
    ((*R, "log_normalisers", "9" * 30), put([1.0] * 4), "has the key"),
    ((*T, "nodes"), swap(0, 1), "does not begin with the root"),
    ((*T, "nodes", 1), put(10**6), "is not there, or twice"),
    ((*T, "nodes", 2), lambda c, key: c.__setitem__(key, c[1]), "is not there, or twice"),
    ((*T, "nodes"), lambda c, key: c[key].reverse(), "does not begin with the root"),
    ((*T, "nodes"), swap(1, -1), "never pushed"),
    ((*T, "scores"), drop, "differ in length"),
    ((*T, "scores", 1), put(-50.0), "position 1 scores wrong"),
    ((*T, "pushed", 0), put([]), "never pushed"),
    ((*T, "pushed", 0), lambda c, key: c[key].append(c[key][0]), "pushes what it can't"),
    ((*T, "pushed", 0), lambda c, key: c[key].extend([[0, 1, -9.0], [0, 2, -9.0]]), "pushes what it can't"),
    ((*T, "pushed", 0, 0, 0), put(5), "pushes what it can't"),
    ((*T, "pushed", 0, 0), drop, "has 2 numbers: give parent, token, score"),
    ((*R, "accepted", "dominotree", "20"), put([10**6]), "is no path of its tree"),
    ((*R, "accepted", "dominotree", "20"), put([0]), "is no path of its tree"),
    ((*R, "accepted", "marginal", "16"), drop, "is not what follows"),
    ((*R, "bonus", "dominotree", "20"), put(257), "is not what follows"),
    ((*R, "children", "0", "tokens"), put([]), "tokens at most, with both numbers"),
    ((*R, "children", "0", "tokens", 0), lambda c, key: c.__setitem__(0, c[1]), "tokens at most, with both numbers"),
    ((*R, "children", "0", "marginal", 0), put(0.1), "has a log-probability above 0"),
    ((*R, "children", "999"), put({"tokens": [], "marginal": [], "conditional": []}), "a node that is not there"),
]


@pytest.mark.parametrize(("place", "change", "said"), BAD)
def test_what_contradicts_itself_is_refused(
    tmp_path: Path, place: Place, change: Callable[[Any, Any], None], said: str
) -> None:
    assert said in refused(tmp_path / "x.json", changed(place, change))


def test_two_children_with_one_token_are_refused(tmp_path: Path) -> None:
    whole = content()
    nodes = whole["prompts"][0]["rounds"][0]["nodes"]
    for a, parent in enumerate(nodes["parents"]):
        for b in range(a + 1, len(nodes["parents"])):
            if parent == nodes["parents"][b]:
                nodes["tokens"][b] = nodes["tokens"][a]
                assert "carry the same token" in refused(tmp_path / "x.json", json.dumps(whole))
                return
    raise AssertionError("no node has two children")


def test_a_token_without_a_text_is_refused(tmp_path: Path) -> None:
    for token in content()["vocabulary"]:
        line = refused(tmp_path / "x.json", changed(("vocabulary", token), lambda c, key: c.pop(key)))
        assert f"token {token} is not in the vocabulary" in line


# --- Files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not JSON in UTF-8"),
        (b"\xff\xfe{}", "not JSON in UTF-8"),
        (b"[]", "not a trace"),
        (b"null", "not a trace"),
        (b"{}", "not a trace"),
        (b'{"format": "dominotree-trace"}', "version None; only version 1"),
        (b'{"format": "dominotree-trace", "version": 1}', "it has no target"),
        (b'{"format": "dominotree-trace", "version": true}', "version True"),
        (b'{"format": "dominotree-trace", "version": 1' + b"0" * 5000 + b"}", "not JSON in UTF-8"),
        (b'{"format": NaN}', "it holds NaN"),
        (b'{"format": -Infinity}', "it holds -Infinity"),
        (b"[" * 200_000, "not JSON in UTF-8"),
        (b'{"made_with": {}, "data": []}', "not a trace"),
    ],
)
def test_what_is_no_trace_at_all_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    assert said in refused(tmp_path / "x.json", data)


def test_what_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps(content())
    with monkeypatch.context() as patched:
        patched.setattr(format, "MOST_NODES", small_trace().size - 1)
        assert "nodes: a trace has" in refused(tmp_path / "x.json", text)
    monkeypatch.setattr(format, "MOST_BYTES", len(text) - 1)
    assert "so no trace" in refused(tmp_path / "x.json", text)


def test_a_million_nodes_are_refused(tmp_path: Path) -> None:
    def grow(container: Any, key: Any) -> None:
        container[key] = {"tokens": [1] * 10**6, "parents": [-1] * 10**6, "depths": [0] * 10**6}

    assert "1,000," in refused(tmp_path / "x.json", changed((*R, "nodes"), grow))


def test_a_file_that_can_not_be_read_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(InputError, match="can't be read"):
            Trace.load(path)


def test_damaged_bytes_never_raise_anything_else(tmp_path: Path) -> None:
    """Cut, overwritten and doubled pieces of a file, at random places."""
    chance = random.Random(0)
    text = json.dumps(content(), separators=(",", ":"), ensure_ascii=False).encode()
    path, bad = tmp_path / "x.json", 0
    for _ in range(150):
        a, size = chance.randrange(len(text)), chance.choice((1, 1, 2, 5, 200))
        piece = chance.choice((b"", b"0", b"-", b"9", b"\x00", b'"', b",", b"]", b"\xf0", text[a : a + size] * 2))
        path.write_bytes(text[:a] + piece + text[a + size :])
        try:
            Trace.load(path)
        except InputError as error:
            bad += 1
            assert str(error).isprintable()
    assert bad > 100


def test_the_reader_leaves_its_input_alone() -> None:
    given = content()
    before = copy.deepcopy(given)
    Trace.from_json(given)
    assert given == before
