"""What was executed, as rows and as a table. It knows the reports of pytest, and no notebook."""

from typing import Any

import pytest

HEADER = f"{'notebook':38} {'seconds':>8} {'peak MiB':>9}  outcome"


def rows(reports: list[pytest.TestReport]) -> list[dict[str, Any]]:
    """One for each notebook executed, from what its test put on record; `peak_mib` is None where it failed."""
    found = []
    for report in reports:
        noted = dict(report.user_properties)
        if report.when == "call" and "notebook" in noted:
            numbers = {key: noted.get(key) for key in ("seconds", "peak_mib")}
            found.append({"notebook": noted["notebook"], **numbers, "outcome": report.outcome})
    return sorted(found, key=lambda row: row["notebook"])


def table(found: list[dict[str, Any]]) -> list[str]:
    """The rows as lines, a header before them and the sum of seconds at the end."""
    lines = [HEADER]
    for row in found:
        peak = "" if row["peak_mib"] is None else f"{row['peak_mib']:.0f}"
        lines.append(f"{row['notebook']:38} {row['seconds'] or 0:8.1f} {peak:>9}  {row['outcome']}")
    return [*lines, f"{'all':38} {sum(row['seconds'] or 0 for row in found):8.1f}"]
