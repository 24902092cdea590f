"""Every notebook runs from top to bottom, and two are computed anew. `make notebooks` is this file and its report.

Each is executed once as it is (FAST, where it has a recording). Those in FULL are executed once more, without
their recordings, and what they compute must be what was recorded.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from course import NOTEBOOKS, ROOT, code_cells, noise, read
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode
from report import rows, table

CELL_SECONDS = 600  # stops a cell that hangs; how long one takes is reported and not judged
FULL = ["01_speculative_decoding", "03_building_a_tree"]  # the cheapest; the others only by `make record`
TOLERANCE = 1e-3  # of recorded numbers, as the notebooks state
# Asks the kernel for its peak memory. Linux first: there `ru_maxrss` counts what the parent had before it, too.
PEAK = """
import pathlib, resource, sys
_status = pathlib.Path("/proc/self/status")
_unit = 2**20 if sys.platform == "darwin" else 2**10
print(next(int(line.split()[1]) / 2**10 for line in _status.open() if line.startswith("VmHWM")) if _status.exists()
      else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _unit)
"""

Record = Callable[[str, object], None]


def kinds(cell: NotebookNode) -> set[str]:
    """What a cell put out, without its content: a stream's name or a display's types."""
    return {name for o in cell.outputs for name in ([o.name] if o.output_type == "stream" else o.get("data", {}))}


def executed(notebook: NotebookNode, folder: Path, record: Record) -> NotebookNode:
    """The notebook with new outputs. Seconds and peak MiB of its kernel go on record, if it fails the former do."""
    folder.mkdir(parents=True, exist_ok=True)
    asked = nbformat.v4.new_notebook(metadata=notebook.metadata)
    asked.cells = [*notebook.cells, nbformat.v4.new_code_cell(PEAK)]
    client = NotebookClient(
        asked, timeout=CELL_SECONDS, startup_timeout=120, resources={"metadata": {"path": str(folder)}}
    )
    begun = time.perf_counter()
    try:
        client.execute()
    finally:
        record("seconds", time.perf_counter() - begun)
    record("peak_mib", float(asked.cells.pop().outputs[0].text))
    return asked


def differences(found: Any, stored: Any, place: str = "") -> list[str]:
    """Where two contents of JSON files differ by more than the tolerance: numbers by rounding, seconds by any."""
    if isinstance(found, dict) and isinstance(stored, dict) and found.keys() == stored.keys():
        timed = [key for key in found if key.endswith("seconds")]
        return [d for key in found if key not in timed for d in differences(found[key], stored[key], f"{place}/{key}")]
    if isinstance(found, list) and isinstance(stored, list) and len(found) == len(stored):
        return [
            d for i, (a, b) in enumerate(zip(found, stored, strict=True)) for d in differences(a, b, f"{place}/{i}")
        ]
    if isinstance(found, float) and isinstance(stored, float):
        return [] if abs(found - stored) <= TOLERANCE else [place]
    return [] if found == stored else [place]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.notebook
@pytest.mark.model
@pytest.mark.slow
def test_it_runs_from_top_to_bottom(path: Path, tmp_path: Path, record_property: Record) -> None:
    """In a folder that looks like the repository, so that the figures a notebook writes don't replace ours."""
    record_property("notebook", path.stem)
    (tmp_path / "data").symlink_to(ROOT / "data")
    (tmp_path / "figures").mkdir()
    stored = read(path)
    found = executed(read(path), tmp_path / path.parent.relative_to(ROOT), record_property)
    assert noise(found) == []
    pairs = zip(code_cells(found), code_cells(stored), strict=True)
    assert all(kinds(new) == kinds(old) for new, old in pairs), "the stored outputs are not from these cells"
    for figure in (tmp_path / "figures").iterdir():
        assert (ROOT / "figures" / figure.name).exists(), f"figures/{figure.name} is written but not stored"


@pytest.mark.parametrize("stem", FULL)
@pytest.mark.notebook
@pytest.mark.model
@pytest.mark.slow
def test_full_gives_what_was_recorded(
    stem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Record
) -> None:
    """On the same weights: a recording of other ones is stale, which the stored outputs may not be."""
    record_property("notebook", f"{stem}, FULL")
    monkeypatch.setenv("DOMINOTREE_FULL", "1")
    monkeypatch.setenv("DOMINOTREE_TRACES", str(tmp_path / "traces"))
    assert noise(executed(read(ROOT / "notebooks" / f"{stem}.ipynb"), tmp_path / "notebooks", record_property)) == []
    written = sorted((tmp_path / "traces").glob("*.json"))
    assert written
    for path in written:
        stored = ROOT / "data" / "traces" / path.name
        assert differences(json.loads(path.read_text()), json.loads(stored.read_text())) == []


# --- the checks themselves: each finds what it is there for ---------------------------------------------


def test_an_execution_is_measured_and_a_failure_is_not_hidden(tmp_path: Path) -> None:
    """Peak memory against what the notebook allocates, and an error on the way up."""
    measured: dict[str, Any] = {}
    hungry = "block = b'x' * (300 * 2**20)\ndel block\nprint('done')"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(hungry)])
    found = executed(notebook, tmp_path / "a", measured.__setitem__)
    assert [output.text for cell in code_cells(found) for output in cell.outputs] == ["done\n"]
    assert 300 < measured["peak_mib"] < 600 and measured["seconds"] > 0

    failed: dict[str, Any] = {}
    wrong = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("assert 1 == 2")])
    with pytest.raises(CellExecutionError, match="assert 1 == 2"):
        executed(wrong, tmp_path / "b", failed.__setitem__)
    assert failed.keys() == {"seconds"}


def test_a_difference_is_found_and_rounding_is_not() -> None:
    stored = {"a": [1, 2.0], "b": "x", "plain seconds": 1.0}
    assert differences({"a": [1, 2.0001], "b": "x", "plain seconds": 9.0}, stored) == []
    assert differences(stored | {"a": [1, 2.1], "b": "y"}, stored) == ["/a/1", "/b"]
    assert differences(stored | {"a": [1]}, stored) == ["/a"]
    assert differences({"a": [1, 2.0], "b": "x"}, stored) == [""]


def test_the_report_has_a_row_for_each_execution_failed_or_not() -> None:
    def report(outcome: str, when: str = "call", **noted: object) -> pytest.TestReport:
        where = ("x.py", 1, "x")
        return pytest.TestReport("x", where, {}, outcome, None, when, user_properties=list(noted.items()))  # type: ignore

    done = report("passed", notebook="02_b", seconds=2.0, peak_mib=700.4)
    broken = report("failed", notebook="01_a", seconds=1.5)
    found = rows([done, broken, report("passed"), report("passed", when="teardown", notebook="02_b")])
    assert [(row["notebook"], row["peak_mib"], row["outcome"]) for row in found] == [
        ("01_a", None, "failed"),
        ("02_b", 700.4, "passed"),
    ]
    assert [line.split() for line in table(found)[1:]] == [
        ["01_a", "1.5", "failed"],
        ["02_b", "2.0", "700", "passed"],
        ["all", "3.5"],
    ]
