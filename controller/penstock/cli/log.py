"""What a process that serves says on stderr: a line an event."""

from __future__ import annotations

import json
import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def log_as(program: str) -> Callable[..., None]:
    """Writes an event and its fields: a line of JSON for a journal, words for a terminal."""

    def log(event: str, **fields: object) -> None:
        if sys.stderr.isatty():
            words = "  ".join(
                f"{key}={value}" for key, value in fields.items() if value is not None
            )
            print(f"{program}: {event}  {words}", file=sys.stderr, flush=True)
            return
        time = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        print(json.dumps({"time": time, "event": event, **fields}), file=sys.stderr, flush=True)

    return log
