"""events.jsonl: what happened to a tenant, one JSON object a line, append-only, bounded."""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

FILE = "events.jsonl"
MAX_BYTES = 1 << 20


def record_event(directory: Path, event: str, **fields: object) -> None:
    """Appends one event. Past `MAX_BYTES` the file makes room: the one before is kept as `.1`.

    A full disk loses the event, never the tenant.
    """
    line = json.dumps(
        {
            "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            "event": event,
            **fields,
        }
    )
    file = directory / FILE
    try:
        if file.exists() and file.stat().st_size > MAX_BYTES:
            file.replace(directory / f"{FILE}.1")
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, line.encode() + b"\n")  # one write: lines of two writers never mix
        finally:
            os.close(descriptor)
    except OSError:
        return


def read_events(directory: Path) -> list[dict[str, object]]:
    """All events kept, oldest first; a line cut by a full disk is left out."""
    events = []
    for file in (directory / f"{FILE}.1", directory / FILE):
        if not file.exists():
            continue
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                events.append(json.loads(line))
            except ValueError:  # noqa: PERF203 - bounded file
                continue
    return events
