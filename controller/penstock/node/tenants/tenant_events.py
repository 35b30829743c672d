"""events.jsonl, a tenant's event log: append-only, bounded, one JSON object on each line."""

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
    """Appends one event; once the file exceeds `MAX_BYTES`, it is rotated to `.1`.

    On a full disk the event is lost, but the tenant is unaffected.
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
        # With these flags, opening fails instead of blocking if a pipe without a reader is in its
        # place.
        ways = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | ways, 0o600)
        try:
            check_regular(descriptor, file)
            # A single write, so that the lines of two writers never mix.
            os.write(descriptor, line.encode() + b"\n")
        finally:
            os.close(descriptor)
    except OSError:
        return


def read_events(directory: Path) -> list[dict[str, object]]:
    """All recorded events, oldest first, except lines that a full disk cut short."""
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
