"""nvtop on a terminal of its own, which is its only output."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LONGEST_S = 30
STYLE = re.compile(rb"\x1b\[[0-9;]*m|\x1b[()][A-Z0-9]|[\x0e\x0f]")
MOVE = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")


class Screen:
    """A program that draws; what it has drawn so far, without control sequences."""

    def __init__(self, program: Path, environment: Mapping[str, str]) -> None:
        size = {"TERM": "xterm", "COLUMNS": "160", "LINES": "50"}
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.execve(program, [program, "-C", "-p"], {**environment, **size})  # noqa: S606
        self._drawn = b""

    @property
    def text(self) -> str:
        drawn = MOVE.sub(b" ", STYLE.sub(b"", self._drawn))
        return " ".join(drawn.decode(errors="replace").split())

    def shows(self, *patterns: str) -> bool:
        """True as soon as all patterns have been drawn; False if they are not drawn in time."""
        deadline = time.monotonic() + LONGEST_S
        while not all(re.search(pattern, self.text) for pattern in patterns):
            ready, _, _ = select.select([self._fd], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                return False
            try:
                self._drawn += os.read(self._fd, 65536)
            except OSError:  # it ended
                return False
        return True

    def end(self) -> None:
        os.kill(self._pid, signal.SIGTERM)
        os.waitpid(self._pid, 0)
        os.close(self._fd)
