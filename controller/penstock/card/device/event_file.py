"""Event file: lost cards of a program, as lines of JSON for the program's supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import time

from penstock.card.names import EVENTS_VARIABLE


def note_event(event: str, text: str) -> None:
    """Adds a line of JSON with `time`, `event` and `text`, if the environment names a file.

    A file that cannot be written changes nothing for the program.
    """
    file = os.environ.get(EVENTS_VARIABLE)
    if not file:
        return
    line = json.dumps({"time": time.time(), "event": event, "text": text}) + "\n"
    with contextlib.suppress(OSError), open(file, "a") as stream:  # noqa: PTH123 - any text
        stream.write(line)
