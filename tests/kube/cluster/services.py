"""What the first process of a namespace does: starts services, and again when they end."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PAUSE_S = 1.0  # between a service's end and its next start, as a service manager would
LOOK_S = 0.2
ENDED = "ended with exit code"  # in a service's own log; a signal's number is negative


class Services:
    """Services by name, each with a log of its own. For a process that has no other children."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._commands: dict[str, list[str]] = {}
        self._fds: dict[str, tuple[int, ...]] = {}
        self._running: dict[int, str] = {}
        self._due_s: dict[str, float] = {}

    def start(self, name: str, *command: str | Path, fds: tuple[int, ...] = ()) -> None:
        """Starts `command` and keeps it running from then on; it inherits the files `fds`."""
        self._commands[name] = [str(part) for part in command]
        self._fds[name] = fds
        self._spawn(name)

    def _spawn(self, name: str) -> None:
        with (self._logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                self._commands[name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=self._fds[name],
                start_new_session=True,
            )
        self._running[process.pid] = name
        process.returncode = 0  # it is waited for below, with whatever else ends in this namespace

    def look(self) -> None:
        """Takes up what has ended, also processes whose parents died; starts what is due."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            if name := self._running.pop(pid, None):
                self._tell(name, f"{ENDED} {os.waitstatus_to_exitcode(status)}")
                self._due_s[name] = time.monotonic() + PAUSE_S
        for name in [n for n, due in self._due_s.items() if due <= time.monotonic()]:
            del self._due_s[name]
            self._spawn(name)

    def tend(self, token: Path) -> None:
        """Looks for as long as the file `token` is there: who removes it wants the end of all."""
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # the kernel then ends all the rest
        while token.exists():
            self.look()
            time.sleep(LOOK_S)

    def _tell(self, name: str, what: str) -> None:
        with (self._logs / f"{name}.log").open("a") as log:
            log.write(f"--- {name} {what}, started again in {PAUSE_S:g} s ---\n")
