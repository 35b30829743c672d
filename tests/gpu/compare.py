"""Differences between two reports: `python -m tests.gpu.compare OLD.json NEW.json`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.gpu.budget import MORE
from tests.gpu.reading import read_report

from penstock.model import PenstockError

NOTABLE = 0.10  # of a figure: less is a run like another
NOTABLE_POINTS = 0.5  # of a share, in points
UNRANKED = ("cut",)  # says nothing of the thing itself


def changes(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Row, what of it, before, now: rows whose status or verdict changed, figures that moved."""
    found = []
    earlier = {(row["section"], row["name"]): row for row in old["rows"]}
    for row in new["rows"]:
        if row["section"] == MORE and (row["section"], row["name"]) not in earlier:
            continue  # as many as there was time for
        name = f"{row['section']}: {row['name']}"
        was = earlier.pop((row["section"], row["name"]), None)
        if was is None:
            found.append((name, "row", "", "new"))
            continue
        if was["status"] != row["status"]:
            found.append((name, "status", was["status"], row["status"]))
        elif was["reached"] != row["reached"]:
            found.append((name, "reached", _verdict(was), _verdict(row)))
        if row["status"] in UNRANKED or was["status"] in UNRANKED:
            continue
        for figure, value in row["figures"].items():
            before = was["figures"].get(figure)
            if before is not None and _is_notable(figure, before, value):
                found.append((name, figure, f"{before:.5g}", f"{value:.5g}"))
    found += [(f"{section}: {name}", "row", "there", "gone")
              for section, name in earlier if section != MORE]  # fmt: skip
    return found


def _verdict(row: dict[str, Any]) -> str:
    return {True: "yes", False: "no", None: "not asked"}[row["reached"]]


def _is_notable(figure: str, before: float, value: float) -> bool:
    if figure.endswith(("_points", "_percent")):
        return abs(value - before) > NOTABLE_POINTS
    return abs(value - before) > NOTABLE * max(abs(before), abs(value))


def table(found: list[tuple[str, str, str, str]]) -> str:
    """The changes as Markdown."""
    if not found:
        return "Nothing changed by more than a run differs from another."
    lines = ["| row | what | before | now |", "|---|---|---|---|"]
    return "\n".join([*lines, *("| " + " | ".join(one) + " |" for one in found)])


def main() -> int:
    """The exit code: 2 when a file is no report."""
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        print(table(changes(*(read_report(Path(word)) for word in sys.argv[1:]))))
    except PenstockError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
