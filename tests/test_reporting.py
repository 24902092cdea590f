"""The command `report`: files that are the same in every process, or one line and nothing."""

import csv
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from made_records import evaluation

from dominotree_lite.cli import main
from dominotree_lite.records import RecordSet

NAMES = ("tau", "speedup", "paired", "inflation", "budgets", "stages", "acceptance", "rejections", "losslessness")
PICTURES = ("tau", "speedup", "budgets", "stages", "acceptance", "rejections")


def stored(path: Path, records: RecordSet) -> Path:
    lines = [*records.runs.values(), *records.records]
    path.write_text("".join(json.dumps(dataclasses.asdict(one), separators=(",", ":")) + "\n" for one in lines))
    return path


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_the_same_records_give_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    path = stored(tmp_path / "bench.jsonl", evaluation())
    assert main(["report", str(path), "--out", str(tmp_path / "one")]) == 0
    command = [sys.executable, "-m", "dominotree_lite.cli", "report", str(path), "--out", str(tmp_path / "two")]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"})
    one, two = files(tmp_path / "one"), files(tmp_path / "two")
    assert one == two
    wanted = {f"{name}{ending}" for name in (*NAMES, "partings") for ending in (".md", ".tex", ".csv")}
    assert set(one) == wanted | {"report.md"} | {f"{name}-T{t}.svg" for name in PICTURES for t in (0, 1)}
    for name, content in one.items():
        if name.endswith(".svg"):
            assert ElementTree.fromstring(content).tag.endswith("svg")
    assert all(f"]({name})" in one["report.md"].decode() for name in one if name.endswith(".svg"))


def test_a_table_holds_the_records_numbers(tmp_path: Path) -> None:
    path = stored(tmp_path / "bench.jsonl", evaluation())
    main(["report", str(path), "--out", str(tmp_path)])
    with (tmp_path / "budgets.csv").open() as file:
        rows = {(row["T"], row["method"], row["budget"]): row for row in csv.DictReader(file)}
    own = [r for r in evaluation().records if (r.method, r.budget, r.temperature) == ("marginal", 16, 1.0)]
    found = rows["1", "marginal", "16"]
    assert float(found["tau"]) == pytest.approx(sum(r.tokens for r in own) / sum(r.rounds for r in own))
    assert float(found["tau low"]) < float(found["tau"]) < float(found["tau high"])
    assert int(found["prompts"]) == len(own)


def test_two_conditions_have_a_folder_each(tmp_path: Path) -> None:
    whole = evaluation(temperatures=(0.0,))
    others = [dataclasses.replace(r, dtype="bfloat16", cell=r.cell[::-1]) for r in whole.records]
    path = stored(tmp_path / "bench.jsonl", RecordSet(whole.runs, whole.records + others))
    assert main(["report", str(path), "--out", str(tmp_path / "out")]) == 0
    found = files(tmp_path / "out")
    assert {Path(name).parent.name for name in found if name.endswith("tau.csv")} == {
        "1-smollm2-cpu-bfloat16-packed",
        "2-smollm2-cpu-float32-packed",
    }
    assert "smollm2, bfloat16" in found["report.md"].decode()


@pytest.mark.parametrize(
    ("content", "options", "complaint"),
    [
        (None, [], "bench.jsonl: can't be read"),
        ("", [], "no records"),
        ('{"run":"r9"}\n', [], "bench.jsonl, line 1"),
        ("nonsense\n", [], "bench.jsonl, line 1"),
        ("good", ["--against", "eagle"], "no method 'eagle'"),
    ],
)
def test_bad_records_are_one_line_and_nothing_is_written(
    content: str | None, options: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bench.jsonl"
    if content == "good":
        stored(path, evaluation(2, (0.0,)))
    elif content is not None:
        path.write_text(content)
    assert main(["report", str(path), "--out", str(tmp_path / "out"), *options]) == 2
    assert complaint in capsys.readouterr().err and not (tmp_path / "out").exists()
