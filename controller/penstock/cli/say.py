"""What the user is told on standard error. A wrapper's words never stop the wrapped command."""

from __future__ import annotations

import contextlib
import os
import sys


def say(line: object) -> None:
    """One message. Where it cannot be written (a full disk, a closed pipe), it is lost.

    Written past Python's buffer, which would keep what failed and fail again at the next flush.
    """
    if sys.stderr is not None:  # None: closed when we were started
        with contextlib.suppress(OSError):
            os.write(2, f"penstock: {line}\n".encode(errors="backslashreplace"))
