"""The benchmark on a tiny pair: every piece gives its rows, and a failure costs nothing but itself."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.nn.functional import softmax

from dominotree_lite.cuda import benchmark
from dominotree_lite.cuda.shapes import Pair, load_pair

SMALL = ["--device", "cpu", "--dtype", "float32", "--budgets", "16", "--contexts", "30", "--repeats", "2"]


def run(monkeypatch: pytest.MonkeyPatch, out: Path, *only: str) -> dict[str, list[dict[str, object]]]:
    names = [part for name in only for part in ("--only", name)]
    monkeypatch.setattr("sys.argv", ["benchmark", "--out", str(out), *SMALL, *names])
    benchmark.main()
    found: dict[str, list[dict[str, object]]] = json.loads(out.read_text())
    return found


def test_every_piece_has_rows_of_positive_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(monkeypatch, tmp_path / "out.json", "tiny")
    assert not [row for rows in found.values() for row in rows if "error" in row]
    for row in found["tiny:rounds"]:
        assert all(row[stage] > 0 for stage in ("draft", "build", "verify", "walk", "commit", "round"))  # type: ignore[operator]
    assert {row["builder"] for row in found["tiny:builders"]} >= {"heap", "heap-graph", "frontier-graph"}
    assert all(row["same"] for row in found["tiny:builders"] if row["builder"] != "heap")
    assert {row["weights"] for row in found["tiny:steps"]} == {"random"}


def test_a_piece_that_fails_is_said_and_the_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(pair: Pair, grid: benchmark.Grid) -> Iterator[benchmark.Row]:
        yield {"first": 1}
        raise RuntimeError("no memory\nleft")

    run(monkeypatch, tmp_path / "out.json", "tiny:ceilings")
    monkeypatch.setitem(benchmark.PIECES, "steps", fails)
    found = run(monkeypatch, tmp_path / "out.json", "tiny:steps", "tiny:builders")
    assert found["tiny:steps"] == [{"weights": "random", "first": 1}, {"error": "RuntimeError: no memory"}]
    assert found["tiny:ceilings"] and found["tiny:builders"]
    assert "tiny:steps failed: RuntimeError: no memory" in capsys.readouterr().out


def test_base_logits_are_as_peaked_as_a_drafters() -> None:
    draft = benchmark.draft_of(load_pair("tiny", "cpu", torch.float32))
    best = softmax(draft.base_logits, -1).max(-1).values
    assert 0.5 < float(best.min()) and float(best.max()) < 0.99
