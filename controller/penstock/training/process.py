"""Process: how what a run has started is ended, and its exit code in words."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LOOKS_S = 0.05
NOT_FOUND, NOT_STARTED = 127, 126  # exit codes, as a shell's


def end_group(group: int, grace_s: float, has_ended: Callable[[], bool]) -> None:
    """Ends a program and its children: SIGTERM, and after `grace_s` seconds at most SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, number)
        deadline_s = time.monotonic() + grace_s
        while not has_ended() and time.monotonic() < deadline_s:
            time.sleep(LOOKS_S)


def kill_group(group: int) -> None:
    """Ends at once what is left of a program's children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def why_ended(code: int, what: str = "the program") -> str:
    """An exit code in words; 0: it succeeded."""
    if code >= 0:
        return f"{what} ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = str(-code)
    return f"{what} was ended by signal {name}"


def why_not_started(command: str, error: OSError) -> tuple[int, str]:
    """The exit code and the words for a command that could not be started."""
    code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_STARTED
    return code, f"{command} cannot be started: {error.strerror}"
