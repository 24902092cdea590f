"""Recordings: what is stored comes back, what has changed is said, and a notebook gets what it asked for."""

import json
from pathlib import Path
from typing import Any

import pytest

from dominotree_lite import recording
from dominotree_lite.errors import InputError
from dominotree_lite.recording import Recording, obtain

SETTINGS = {"prompt": "Hi", "budgets": (1, 2)}


@pytest.fixture(autouse=True)
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two drafters, and an empty folder of recordings; returns the drafters' folder."""
    for name in ("a", "b"):
        folder = tmp_path / "drafters" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_text(name)
    monkeypatch.setattr(recording, "DRAFTERS", tmp_path / "drafters")
    monkeypatch.setenv("DOMINOTREE_TRACES", str(tmp_path / "traces"))
    monkeypatch.setattr(recording, "is_fetched", lambda alias: False)
    return tmp_path / "drafters"


def test_what_is_written_is_read_back() -> None:
    written = Recording.write("one", {"rows": [(1, 0.1)]}, SETTINGS, ["a"], "smollm2")
    read = Recording.load("one")
    assert read == written
    assert read.data == {"rows": [[1, 0.1]]}
    assert read.settings == {"prompt": "Hi", "budgets": [1, 2]}
    assert read.stale("smollm2", ["a"]) == []


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_changed_weights_are_named(shipped: Path, file: str) -> None:
    written = Recording.write("one", 1, {}, ["a", "b"], "smollm2")
    (shipped / "b" / file).write_text("changed")
    assert written.stale("smollm2", ["a", "b"]) == ["the weights of b have changed"]


def test_other_drafters_and_another_target_are_named() -> None:
    reasons = Recording.write("one", 1, {}, ["a"], None).stale("smollm2", ["b"])
    assert len(reasons) == 3
    assert all(word in reason for word, reason in zip(("smollm2", " a ", " b "), reasons, strict=True))


@pytest.mark.parametrize("text", [None, "no JSON", "{}", "[]", '{"made_with": {}, "data": 1}'])
def test_what_is_no_recording_is_refused_in_a_line(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "traces").mkdir()
        (tmp_path / "traces" / "one.json").write_text(text)
    with pytest.raises(InputError, match="one.json") as caught:
        Recording.load("one")
    assert "\n" not in str(caught.value)


def test_what_json_has_no_name_for_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        Recording.write("one", float("nan"), {})
    assert not (tmp_path / "traces" / "one.json").exists()


@pytest.mark.parametrize(("drafters", "target"), [(["c"], None), (["a"], "gpt")])
def test_unknown_names_are_refused(drafters: list[str], target: str | None) -> None:
    with pytest.raises(InputError):
        Recording.write("one", 1, {}, drafters, target)


def never() -> Any:
    raise AssertionError("computed although it was recorded")


def ask(read: bool = True, compute: Any = never, **changed: Any) -> Recording:
    return obtain("one", SETTINGS | changed, compute, read, ["a"], "smollm2")


def test_a_recording_that_answers_is_read(shipped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Recording.write("one", 1, SETTINGS, ["a"], "smollm2")
    assert ask().data == 1
    assert "up to date" in capsys.readouterr().out
    (shipped / "a" / "model.safetensors").write_text("changed")
    assert ask().data == 1
    printed = capsys.readouterr().out
    assert "STALE: the weights of a have changed" in printed
    assert printed.count("\n") == 1


def test_full_computes_and_records_again() -> None:
    Recording.write("one", 1, SETTINGS, ["a"], "smollm2")
    assert ask(read=False, compute=lambda: (2,)).data == [2]
    assert Recording.load("one").data == [2]


def test_other_settings_are_computed_where_the_target_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Recording.write("one", 1, SETTINGS, ["a"], "smollm2")
    monkeypatch.setattr(recording, "is_fetched", lambda alias: True)
    found = ask(compute=lambda: 2, prompt="Bye")
    assert (found.data, found.settings["prompt"]) == (2, "Bye")
    assert "not recorded for prompt 'Bye'; computed here" in capsys.readouterr().out
    assert Recording.load("one").data == 1


def test_other_settings_without_the_target_give_the_recorded_ones(capsys: pytest.CaptureFixture[str]) -> None:
    Recording.write("one", 1, SETTINGS, ["a"], "smollm2")
    found = ask(prompt="Bye")
    assert (found.data, found.settings["prompt"]) == (1, "Hi")
    printed = capsys.readouterr().out
    assert "smollm2 is not fetched, so this is for prompt 'Hi'" in printed
    assert "STALE" not in printed


@pytest.mark.parametrize(("value", "fast"), [(None, True), ("", True), ("0", True), ("1", False), ("yes", False)])
def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch, value: str | None, fast: bool) -> None:
    monkeypatch.delenv("DOMINOTREE_FULL", raising=False)
    if value is not None:
        monkeypatch.setenv("DOMINOTREE_FULL", value)
    assert recording.fast() is fast


def test_shipped_recordings_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOMINOTREE_TRACES")
    stored = {path.stem: json.loads(path.read_text()) for path in recording.traces().glob("*.json")}
    recordings = {name: content for name, content in stored.items() if "made_with" in content}
    assert stored.keys() - recordings.keys() == {"theatre"}  # a trace: tests/test_trace.py
    for name, content in recordings.items():
        assert content["data"] == Recording.load(name).data
