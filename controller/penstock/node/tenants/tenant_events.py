"""events.jsonl: what happened to a tenant, one JSON object a line, append-only, bounded."""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from penstock.node.tenants.json_files import check_regular, read_record

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
        # Without a reader a pipe in its place cannot be opened so, and nobody waits.
        ways = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | ways, 0o600)
        try:
            check_regular(descriptor, file)
            os.write(descriptor, line.encode() + b"\n")  # one write: lines of two writers never mix
        finally:
            os.close(descriptor)
    except OSError:
        return


def read_events(directory: Path) -> list[dict[str, object]]:
    """All events kept, oldest first; a line cut by a full disk is left out."""
    events = []
    for file in (directory / f"{FILE}.1", directory / FILE):
        try:
            text = read_record(file, errors="replace")
        except OSError:
            continue
        for line in text.splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                events.append(event)
    return events
