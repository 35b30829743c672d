"""Ends what a run started when the run itself was killed: nothing of it may stay on the device.

The run starts it, and tells it over a pipe which sessions it began and ended. When the pipe ends
without a last word, the run is gone: python -m tests.gpu.keeper FOLDER
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.gpu import children
from tests.gpu.facts import REPOSITORY

if TYPE_CHECKING:
    from typing_extensions import Self

LAST_WORD = "done"


class Keeper:
    """The process that watches over this one. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        """`folder`: that of the run's own files; removed when the run was killed."""
        self._folder = folder

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.keeper", str(self._folder)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # what is sent to the run's group is not for it
        )
        children.tell_sessions_to(self._tell)
        return self

    def __exit__(self, *_: object) -> None:
        children.tell_sessions_to(None)
        self._tell(LAST_WORD)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _tell(self, words: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(words + "\n")
        self._process.stdin.flush()


def main() -> None:
    """Listens until the run's end."""
    sessions: set[int] = set()
    for line in sys.stdin:
        word = line.strip()
        if word == LAST_WORD:
            return
        if word.startswith("+"):
            sessions.add(int(word))
        else:
            sessions.discard(-int(word))
    for session in sessions:
        children.kill_session(session)
    shutil.rmtree(Path(sys.argv[1]), ignore_errors=True)


if __name__ == "__main__":
    main()
