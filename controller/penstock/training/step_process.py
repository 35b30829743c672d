"""Step process: a step's command, whose output goes to the run's log with the step's name."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from typing import TYPE_CHECKING

from penstock.training.process import end_group, kill_group

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

LONGEST_LINE_BYTES = 8 << 10  # longer ones are broken
_READS_WITHIN_S = 2.0  # after the end: a child that left the group may hold the pipe


class StepProcess:
    """A step's command, as it runs."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        folder: str | None,
        environment: Mapping[str, str],
        log: Path,
        lock: int,
    ) -> None:
        """Starts it. `lock`: a descriptor that it inherits. Raises `OSError`."""
        self._prefix = f"[{name}] ".encode()
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._process = subprocess.Popen(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                pass_fds=[lock],
            )  # fmt: skip
        except BaseException:
            os.close(self._log)
            raise
        self._reader = threading.Thread(target=self._copy, name=f"step {name}", daemon=True)
        self._reader.start()

    def wait(self) -> int:
        """Waits for its end, and ends its children; the exit code, negative for a signal."""
        code = self._process.wait()
        kill_group(self._process.pid)
        self._reader.join(_READS_WITHIN_S)
        return code

    def stop(self, grace_s: float) -> None:
        """Ends it, by SIGTERM and after `grace_s` seconds at most by SIGKILL."""
        if self._process.returncode is None:
            end_group(self._process.pid, grace_s, lambda: self._process.returncode is not None)

    def _copy(self) -> None:
        """Copies its output, line by line, so that those of several steps do not mix."""
        pipe = self._process.stdout
        assert pipe is not None  # noqa: S101 - it was asked for
        with pipe, os.fdopen(self._log, "wb", buffering=0) as log:
            while line := pipe.readline(LONGEST_LINE_BYTES):
                with contextlib.suppress(OSError):  # a full disk: the step goes on
                    log.write(self._prefix + line.rstrip(b"\n") + b"\n")
