"""Messages to the user on standard error; a failed write never stops the wrapped command."""

from __future__ import annotations

import contextlib
import os
import sys


def say(line: object) -> None:
    """Prints one message, or drops it if it cannot be written (a full disk, a closed pipe).

    The write bypasses Python's buffer, which would keep the text and fail again at the next flush.
    """
    if sys.stderr is not None:  # None if it was closed when this process started
        with contextlib.suppress(OSError):
            os.write(2, f"penstock: {line}\n".encode(errors="backslashreplace"))
