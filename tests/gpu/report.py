"""The report: JSON and Markdown, complete on disk after every row, whatever ends the run.

Both files are written aside and renamed, so that even after a kill -9 they hold all rows that were
measured. Rows that were planned and not reached are `cut`.
"""

from __future__ import annotations

import itertools
import json
import os
from typing import TYPE_CHECKING, Any

from tests.gpu.rows import BAD, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

VERSION = 1
YES_NO = {True: "yes", False: "**no**", None: ""}


class Report:
    """The rows of one run, kept on disk."""

    def __init__(
        self,
        base: Path,
        facts: dict[str, Any],
        planned: Sequence[tuple[str, str]],
        say: Callable[[str], None] = print,
        hidden: dict[str, str] | None = None,
    ) -> None:
        """`base`: the files' path without suffix. `planned`: section and name of each row.

        `hidden`: this machine's folders, and what stands for them in the files.
        """
        base.parent.mkdir(parents=True, exist_ok=True)
        self.json_path = base.with_name(base.name + ".json")
        self.markdown_path = base.with_name(base.name + ".md")
        self.facts = facts
        self.rows: list[Row] = []
        self.state = "running"  # or how it ended
        self._planned = list(planned)
        self._say = say
        self._hidden = hidden or {}
        self.problem = ""  # why the files are not as they should be
        names = (f"{base.name}-{number}" for number in itertools.count(2))
        while not self._begin():  # another run began in the same second
            again = next(names)
            self.json_path = base.with_name(again + ".json")
            self.markdown_path = base.with_name(again + ".md")

    def _begin(self) -> bool:
        """The files' first writing; False: there are such files already."""
        try:
            self._write(fresh=True)
        except FileExistsError:
            return False
        return True

    def add(self, row: Row) -> None:
        """Appends a row, prints it, and has it on disk when this returns."""
        self.rows.append(row)
        mark = " (simulated)" if row.simulated else ""
        self._say(f"[{row.section}] {row.name}: {row.status}{mark}: {row.measured}")
        self._write()

    def end(self, state: str) -> None:
        """`state`: "complete", or what cut it short."""
        self.state = state
        self._write()

    def as_dict(self) -> dict[str, Any]:
        """The whole report, rows that were not reached included."""
        rows = [*self.rows, *self.missing()]
        return {
            "report": "penstock gpu-check",
            "version": VERSION,
            "state": self.state,
            "facts": self.facts,
            "rows": [row.as_dict() for row in rows],
        }

    def missing(self) -> list[Row]:
        """Checks that were planned and have no row yet, as they stand in the report."""
        reached = {row.key for row in self.rows}
        why = "not reached yet" if self.state == "running" else f"not reached: {self.state}"
        simulated = bool(self.facts.get("simulated"))
        return [
            Row(section, name, "cut", why, "", None, simulated, 0.0)
            for section, name in self._planned
            if (section, name) not in reached
        ]

    def _write(self, *, fresh: bool = False) -> None:
        """`fresh`: nobody's file is to be replaced. Raises FileExistsError then."""
        whole = self.as_dict()
        for path, text in (
            (self.json_path, json.dumps(whole, indent=1, default=str) + "\n"),
            (self.markdown_path, markdown(whole)),
        ):
            for place, name in self._hidden.items():
                text = text.replace(place, name)  # noqa: PLW2901
            try:
                _replace(path, text, fresh=fresh)
            except FileExistsError:
                raise
            except OSError as error:  # a full disk costs the files, not the run: rows are printed
                if not self.problem:
                    self._say(f"cannot write {path}: {error.strerror}; measuring goes on")
                self.problem = f"{path} is not written to its end: {error.strerror}"
                return
        self.problem = ""


def _replace(path: Path, text: str, *, fresh: bool) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if fresh:
            path.hardlink_to(aside)
        else:
            aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)  # also one that found no room


def markdown(report: dict[str, Any], level: str = "#") -> str:
    """A report's JSON as a page; `level`: the heading's number signs."""
    facts, rows = report["facts"], report["rows"]
    lines = [f"{level} GPU check, {facts['date']}", ""]
    lines += [f"- {name}: {_words(value)}" for name, value in facts.items() if name != "date"]
    lines += [f"- state: {report['state']}", f"- rows: {tally(rows)}"]
    if facts.get("simulated"):
        lines += [
            "",
            "**Every row marked `simulated` ran on the simulated GPU, not on a real one.**",
        ]
    for section in dict.fromkeys(row["section"] for row in rows):
        lines += ["", f"{level}# {section.capitalize()}", ""]
        lines += ["| what | status | measured | to reach | reached | device |", "|---" * 6 + "|"]
        for row in rows:
            if row["section"] == section:
                device = "simulated" if row["simulated"] else "real"
                cells = [row["name"], row["status"], row["measured"], row["aim"]]
                cells += [YES_NO[row["reached"]], device]
                lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def tally(rows: Sequence[dict[str, Any]]) -> str:
    """How many rows of which status, those that missed their aim, those that were simulated."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["status"]] = counts.get(row["status"], 0) + 1
    missed = sum(row["reached"] is False for row in rows)
    simulated = sum(bool(row["simulated"]) for row in rows)
    words = [f"{count} {status}" for status, count in counts.items()]
    return ", ".join([*words, f"{missed} missed their aim", f"{simulated} simulated"])


def is_bad(row: Row) -> bool:
    """Whether the row tells of a fault, not of what is not there or of a figure below its aim."""
    return row.status in BAD


def _cell(text: str) -> str:
    return " ".join(str(text).replace("|", "\\|").split())


def _words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_words(one)}" for key, one in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)
