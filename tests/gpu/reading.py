"""Reports of earlier runs, read from their files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.gpu.report import VERSION

from penstock.model import PenstockError

if TYPE_CHECKING:
    from pathlib import Path

PATTERN = "gpu-*.json"
FACTS = ("date", "commit", "version", "device", "simulated")
ROW = ("section", "name", "status", "measured", "aim", "reached", "simulated", "figures")


def read_report(path: Path) -> dict[str, Any]:
    """A report as `make gpu-check` wrote it.

    Raises:
        PenstockError: the file cannot be read, or is no such report.
    """
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PenstockError(f"cannot read {path}", str(error)) from error
    whole = isinstance(report, dict) and report.get("report") == "penstock gpu-check"
    if not whole or report.get("version") != VERSION:
        raise PenstockError(
            f"{path} is no report that this version reads",
            f"a report of version {VERSION} by make gpu-check was expected",
        )
    missing = [key for key in FACTS if key not in report.get("facts", {})]
    missing += [key for row in report.get("rows", []) for key in ROW if key not in row]
    if missing or not isinstance(report.get("rows"), list) or "state" not in report:
        raise PenstockError(f"{path} is not whole", f"it lacks {', '.join(missing) or 'its rows'}")
    whole_report: dict[str, Any] = report
    return whole_report


def reports_in(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The reports of a folder, oldest first, those of real devices after the simulated ones."""
    found = [(path, read_report(path)) for path in folder.glob(PATTERN)]
    return sorted(
        found, key=lambda one: (not one[1]["facts"]["simulated"], one[1]["facts"]["date"])
    )


def before(
    newest: dict[str, Any], reports: list[tuple[Path, dict[str, Any]]]
) -> tuple[Path, dict[str, Any]] | None:
    """The report before `newest` of the same device; none of a small run for a whole one."""
    facts = newest["facts"]
    same = [
        one
        for one in reports
        if one[1]["facts"]["device"] == facts["device"]
        and bool(one[1]["facts"].get("small")) == bool(facts.get("small"))
        and one[1]["facts"]["date"] < facts["date"]
    ]
    return same[-1] if same else None
