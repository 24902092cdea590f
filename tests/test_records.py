"""Records: read strictly, appended safely against a kill at any byte, by one process at a time."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dominotree_lite.errors import InputError
from dominotree_lite.records import (
    BenchRecord,
    Machine,
    Parting,
    RecordFile,
    Run,
    Stages,
    at_least,
    load_records,
)

RUN = Run("r1", "2026-01-31T12:00:00+00:00", "0.1.0", "3.11.2", "2.13.0", "5.24.0", 1, Machine("x86_64", 2, None))
RECORD = BenchRecord(
    id="gsm8k-like-01",
    suite="gsm8k-like",
    method="dominotree",
    target="smollm2",
    drafter="smollm2-domino",
    temperature=0.5,
    budget=64,
    candidates=512,
    child_cap=None,
    seed=0,
    max_new_tokens=128,
    turns=2,
    device="cpu",
    dtype="float32",
    linear="packed",
    engine="eager",
    cell="0" * 64,
    run="r1",
    tokens=9,
    rounds=3,
    seconds=0.5,
    prefill_seconds=0.25,
    stages=Stages(0.1, 0.1, 0.2, 0.05),
    accepted=[1, 0, 1, 0, 1],
    reached=[1, 0, 0, 0, 2],
    nodes=128,
    token_sha256="f" * 64,
    divergence=Parting(17, -0.0001),
)


def record(number: int, **changes: Any) -> BenchRecord:
    return dataclasses.replace(RECORD, cell=f"{number:064x}", **changes)


def written(path: Path, *records: BenchRecord, run: Run = RUN) -> Path:
    with RecordFile(path, run) as file:
        for one in records:
            file.append(one)
    return path


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    others = [
        record(1),
        record(2, candidates="full", divergence=None, drafter=None, budget=None),
        record(3, candidates=None, divergence=Parting(3, None)),
        record(4, rounds=0, tokens=0, accepted=[], reached=[], nodes=0),
    ]
    path = written(tmp_path / "new" / "out.jsonl", *others)
    read = load_records(path)
    assert read.records == others
    assert read.runs == {"r1": RUN}
    assert ["cell" in line for line in lines(path)] == [False, True, True, True, True]
    assert max(map(len, path.read_bytes().splitlines())) < 2000


def test_a_process_describes_itself_with_its_first_record(tmp_path: Path) -> None:
    path = written(tmp_path / "out.jsonl")
    assert path.read_bytes() == b""
    second = dataclasses.replace(RUN, run="r2", threads=2)
    written(path, record(1), record(2))
    written(path, run=second)
    written(path, record(3, run="r2"), run=second)
    assert [line["run"] for line in lines(path)] == ["r1", "r1", "r1", "r2", "r2"]
    assert load_records(path).runs == {"r1": RUN, "r2": second}


def test_files_are_joined_and_a_cell_in_both_is_refused(tmp_path: Path) -> None:
    first, second = written(tmp_path / "a.jsonl", record(1)), written(tmp_path / "b.jsonl", record(2))
    assert load_records(first, second).records == [record(1), record(2)]
    with pytest.raises(InputError, match=r"c\.jsonl, line 2: the cell of .* is already at .*a\.jsonl, line 2"):
        load_records(first, written(tmp_path / "c.jsonl", record(1)))


def test_acceptance_by_depth_is_counted_over_rounds_that_drafted_so_deep() -> None:
    rounds = [(0, 0), (2, 4), (4, 4)]  # accepted nodes and deepest drafted node, as in RECORD
    for depth in range(5):
        assert at_least(RECORD.accepted)[depth] == sum(accepted >= depth for accepted, _ in rounds)
        assert at_least(RECORD.reached)[depth] == sum(deepest >= depth for _, deepest in rounds)
    assert at_least([]) == []


# --- Killed ----------------------------------------------------------------------------------------------------


def test_a_kill_at_any_byte_costs_only_the_record_it_hit(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole.jsonl", record(1), record(2)).read_bytes()
    ends = [at + 1 for at, byte in enumerate(whole) if byte == ord("\n")]
    path = tmp_path / "cut.jsonl"
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        kept = [record(1), record(2)][: max(0, sum(end <= cut for end in ends) - 1)]
        assert load_records(path).records == kept
        if cut % 7 == 0 or cut in ends:
            missing = [one for one in (record(1), record(2)) if one not in kept]
            written(path, *missing)
            assert load_records(path).records == [record(1), record(2)]


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.jsonl"
    with RecordFile(path, RUN) as file:
        file.append(record(1))
        before = path.read_bytes()

        def full(number: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            with pytest.raises(InputError, match=r"out\.jsonl: can't be written \(No space left on device\)"):
                file.append(record(2))
        assert path.read_bytes() == before
        file.append(record(3))
    assert load_records(path).records == [record(1), record(3)]


def test_a_file_of_something_else_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    for text in ("a note without an end", '{"name": 1}', "a note\n", json.dumps({"id": "1", "turns": ["Hi"]}) + "\n"):
        path.write_text(text)
        with pytest.raises(InputError, match=r"notes\.txt, line 1"), RecordFile(path, RUN):
            pass
        assert path.read_text() == text


# --- One writer ------------------------------------------------------------------------------------------------

HOLD = """
import sys
from pathlib import Path
from test_records import RUN, RecordFile, record
with RecordFile(Path(sys.argv[1]), RUN) as file:
    file.append(record(1))
    print("open", flush=True)
    sys.stdin.read()
"""


def test_two_processes_can_not_write_one_file_and_a_dead_one_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    tests = Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": f"{tests.parent}{os.pathsep}{tests}"}
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    assert other.stdin and other.stdout
    try:
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(InputError, match=r"out\.jsonl: another process writes it"), RecordFile(path, RUN):
            pass
        assert load_records(path).records == [record(1)]  # reading needs no lock
    finally:
        other.kill()
        other.wait()
        other.stdin.close()
        other.stdout.close()
    written(path, record(2))
    assert load_records(path).records == [record(1), record(2)]


def test_places_that_can_not_be_written_or_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="it is a folder"), RecordFile(tmp_path, RUN):
        pass
    with pytest.raises(InputError, match=r"none\.jsonl: can't be read"):
        load_records(tmp_path / "none.jsonl")


# --- Strictness ------------------------------------------------------------------------------------------------

Change = Callable[[dict[str, Any]], object]


def setting(name: str, value: Any) -> Change:
    return lambda fields: fields.__setitem__(name, value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (setting("tokens", "9"), "tokens is '9': give an integer"),
        (setting("tokens", True), "tokens is True: give an integer"),
        (setting("tokens", 9.0), "tokens is 9.0: give an integer"),
        (setting("tokens", 2), "2 tokens from 3 rounds"),
        (setting("rounds", -3), "rounds is -3"),
        (setting("nodes", -1), "nodes is -1"),
        (setting("seconds", float("nan")), "it holds NaN"),
        (setting("seconds", float("inf")), "it holds Infinity"),
        (setting("seconds", -0.5), "seconds is -0.5"),
        (setting("temperature", -1), "temperature is -1.0"),
        (setting("candidates", "all"), "candidates is 'all'"),
        (setting("linear", "fast"), "linear is 'fast': give plain or packed"),
        (setting("drafter", 7), "drafter is 7: give a text"),
        (setting("method", None), "method is None: give a text"),
        (setting("cell", "F" * 64), "cell is no SHA-256"),
        (setting("token_sha256", "f" * 63), "token_sha256 is no SHA-256"),
        (setting("accepted", [1, 0, 1]), "accepted counts 2 rounds of 3"),
        (setting("accepted", [0, 0, 0, 0, 3]), "accepted is deeper than reached"),
        (setting("accepted", [2, 0, 0, 0, 0, 1]), "accepted is deeper than reached"),
        (setting("accepted", [4, 0, 0, -1]), "accepted counts below 0"),
        (setting("reached", [1, 0, 0, 0, 2, 1]), "reached counts 4 rounds of 3"),
        (setting("stages", {"draft": 1, "build": 1, "verify": 1}), "stages has no commit"),
        (setting("stages", {"draft": 1, "build": 1, "verify": -1, "commit": 0}), "stages.verify is -1.0"),
        (setting("divergence", {"position": 1}), "divergence has no margin"),
        (setting("divergence", 3), "divergence is 3: give an object"),
        (setting("run", "r9"), "run r9 was not described before it"),
        (setting("colour", 1), "it has 'colour', which this version does not know"),
        (lambda fields: fields.pop("dtype"), "it has no dtype"),
        (lambda fields: fields.pop("id"), "it has no id"),
        (lambda fields: fields.pop("cell"), "it has no cell"),
    ],
)
def test_a_wrong_line_is_named_with_file_and_number(tmp_path: Path, change: Change, said: str) -> None:
    path = written(tmp_path / "out.jsonl", record(1))
    fields = dataclasses.asdict(record(2))
    change(fields)
    with path.open("a") as file:
        file.write(json.dumps(fields) + "\n")
    with pytest.raises(InputError) as error:
        load_records(path)
    assert str(error.value).startswith(f"{path}, line 3: {said}")


@pytest.mark.parametrize("bad", [b"", b"[]", b"7", b"\xff", b"{", b"[" * 100_000])
def test_a_line_that_is_no_object_is_named(tmp_path: Path, bad: bytes) -> None:
    path = written(tmp_path / "out.jsonl", record(1))
    path.write_bytes(path.read_bytes() + bad + b"\n")
    with pytest.raises(InputError, match=r"out\.jsonl, line 3: "):
        load_records(path)


def test_one_id_for_two_different_runs_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "out.jsonl", record(1))
    written(path, record(2), run=dataclasses.replace(RUN, threads=9))
    with pytest.raises(InputError, match=r"line 3: run r1 is already there"):
        load_records(path)
