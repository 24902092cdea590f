"""The report of what was executed: seconds and peak memory of each notebook, printed and kept as JSON."""

import json
from pathlib import Path
from typing import Any

import pytest
from report import rows, table

REPORT = Path(__file__).parents[2] / "out" / "notebooks.json"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [r for outcome in ("passed", "failed") for r in terminalreporter.getreports(outcome)]
    found = rows([r for r in reports if isinstance(r, pytest.TestReport)])
    if found:
        REPORT.parent.mkdir(exist_ok=True)
        REPORT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        terminalreporter.section("notebooks, by `make notebooks`")
        for line in [*table(found), f"kept in {REPORT}"]:
            terminalreporter.write_line(line)
