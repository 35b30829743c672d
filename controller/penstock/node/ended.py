"""What happened to tenants that have ended: their last events, kept for a while.

<state>/ended/NAME-TIME.jsonl, a file a tenant. Who asks why a command was ended asks when its
tenant is gone. A tenant of which nothing was recorded but its grant leaves nothing.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING

from penstock.node.events import read_events
from penstock.node.records import read_record

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = "ended"
MOST_FILES = 200
MOST_EVENTS = 200  # of a tenant, the last ones
KEPT_NS = 7 * 24 * 3600 * 10**9
_PLAIN = {"granted", "adopted"}


def keep_events(directory: Path, name: str, state: Path) -> None:
    """Before the `directory` of a tenant goes. A full disk loses them, never more than that."""
    events = read_events(directory)
    if all(one.get("event") in _PLAIN for one in events):
        return
    folder = state / FOLDER
    text = "".join(json.dumps(one) + "\n" for one in events[-MOST_EVENTS:])
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        file = folder / f"{name}-{time.time_ns()}.jsonl"
        file.touch(mode=0o600, exist_ok=False)
        file.write_text(text, encoding="utf-8")
        _make_room(folder)


def read_ended(state: Path, name: str) -> list[dict[str, object]]:
    """Events of the last tenant called `name` that has ended, oldest first; none: not kept."""
    found = [(at_ns, file) for at_ns, kept, file in _files(state / FOLDER) if kept == name]
    for _, file in sorted(found, reverse=True)[:1]:
        with contextlib.suppress(OSError, ValueError):
            lines = read_record(file, errors="replace").splitlines()
            return [one for line in lines if isinstance(one := json.loads(line), dict)]
    return []


def _make_room(folder: Path) -> None:
    oldest_ns = time.time_ns() - KEPT_NS
    files = sorted(_files(folder), reverse=True)
    for number, (at_ns, _, file) in enumerate(files):
        if number >= MOST_FILES or at_ns < oldest_ns:
            file.unlink(missing_ok=True)


def _files(folder: Path) -> list[tuple[int, str, Path]]:
    """When each tenant ended, and its name."""
    found = []
    with contextlib.suppress(OSError):
        for file in folder.iterdir():
            name, _, at_ns = file.name.removesuffix(".jsonl").rpartition("-")
            if at_ns.isdecimal() and file.name.endswith(".jsonl"):
                found.append((int(at_ns), name, file))
    return found
