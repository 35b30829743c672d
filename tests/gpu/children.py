"""Programs that a check starts: each has its own session, and all of the session is ended."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.gpu.rows import NotHereError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Self

_sessions: set[int] = set()  # that were started and not yet ended
_listeners: list[Callable[[str], None]] = []  # one, or none
SILENT = "it had said nothing"
TAIL_CHARACTERS = 600  # of a failed program's words, in the report


class FailedError(Exception):
    """A program ended with an error, or said what cannot be understood."""


class HungError(Exception):
    """A program did not end in its time and was killed; the message holds its last words."""


@dataclass(frozen=True)
class Command:
    """A command and its whole environment."""

    argv: Sequence[str]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Done:
    """A program that ended by itself."""

    code: int
    out: str
    err: str
    seconds: float

    def result(self) -> dict[str, Any]:
        """The JSON object that begins on the last line that begins with a brace.

        Raises:
            NotHereError: it ended with an error and "not here: " and what it lacks.
            FailedError: it ended with an error, or printed none.
        """
        if self.code:
            _, said, lacks = self.err.rpartition("not here: ")
            if said:
                raise NotHereError(tail(lacks))
            raise FailedError(f"{_ended(self.code)}: {tail(self.err or self.out) or SILENT}")
        at = f"\n{self.out}".rfind("\n{")
        if at < 0:
            raise FailedError(f"printed no result: {tail(self.out + self.err)}")
        try:
            found: dict[str, Any] = json.JSONDecoder().raw_decode(self.out, at)[0]
        except ValueError as error:
            words = tail(self.out[at : at + 200])
            raise FailedError(f"printed broken JSON ({error}): {words}") from error
        return found


class Child:
    """A program that runs beside the check. Use as a context manager: nothing of it is left."""

    def __init__(self, command: Command) -> None:
        self._began = time.monotonic()
        self._command = command
        self.process = subprocess.Popen(
            list(command.argv),
            env=dict(command.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._said = ""
        _sessions.add(self.process.pid)
        _told(f"+{self.process.pid}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def wait_for_line(self, word: str, timeout_s: float) -> None:
        """Returns once the program has printed `word` on a line of its own.

        Raises:
            HungError: not within `timeout_s`.
            FailedError: it ended before.
        """
        assert self.process.stdout is not None
        give_up = time.monotonic() + timeout_s
        file = self.process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(file, selectors.EVENT_READ)
            while f"{word}\n" not in self._said:
                if not selector.select(max(0.0, give_up - time.monotonic())):
                    self.kill()
                    raise HungError(f"was not ready after {timeout_s:.0f} s")
                more = os.read(file, 65536)  # nothing reads through the text layer before
                if not more:
                    _, errors = self.process.communicate()
                    raise FailedError(f"{_ended(self.process.returncode)}: {tail(errors)}")
                self._said += more.decode(errors="replace")

    def terminate(self) -> None:
        """Asks it to end (SIGTERM to the whole session's leader and its group)."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGTERM)

    def finish(self, timeout_s: float) -> Done:
        """Waits for its end.

        Raises:
            HungError: not within `timeout_s`; it was killed.
        """
        try:
            out, err = self.process.communicate(timeout=max(0.01, timeout_s))
        except subprocess.TimeoutExpired as late:
            self.kill()
            words = late.stderr or late.stdout or b""
            said = words.decode(errors="replace") if isinstance(words, bytes) else words
            raise HungError(
                f"killed after {timeout_s:.0f} s: {' '.join(self._command.argv)[-120:]}: "
                f"{tail(said) or SILENT}"
            ) from None
        self._kill_session()  # what it left behind
        seconds = time.monotonic() - self._began
        return Done(self.process.returncode, self._said + out, err, seconds)

    def kill(self) -> None:
        """Ends it with all that it started, at once."""
        self._kill_session()
        with contextlib.suppress(OSError, ValueError):
            self.process.communicate(timeout=5)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe:
                pipe.close()

    def _kill_session(self) -> None:
        kill_session(self.process.pid)


def run(command: Command, timeout_s: float) -> Done:
    """A program from its start to its end.

    Raises:
        HungError: it did not end within `timeout_s` and was killed, with all that it started.
    """
    with Child(command) as child:
        return child.finish(timeout_s)


def kill_session(session: int) -> None:
    """Ends all of a session that a child led."""
    for pid in session_members(session):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    if session in _sessions:
        _sessions.discard(session)
        _told(f"-{session}")


def tell_sessions_to(listener: Callable[[str], None] | None) -> None:
    """It hears of each session that begins, "+PID", and that has ended, "-PID"; None: nobody."""
    _listeners[:] = [listener] if listener else []


def _told(words: str) -> None:
    for listener in _listeners:
        with contextlib.suppress(OSError):  # it was killed itself
            listener(words)


def kill_all() -> None:
    """Ends what is left, where a signal came between the start of a program and its end."""
    for session in list(_sessions):
        kill_session(session)


def session_members(session: int) -> list[int]:
    """Pids of the session that `session` leads or led; a zombie is none any more.

    And of those whom any of these started, in sessions of their own too.
    """
    parents: dict[int, int] = {}
    found = set()
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, parent, _, of, *_ = (path / "stat").read_text().rpartition(")")[2].split()
            if state != "Z":
                parents[int(path.name)] = int(parent)
                if int(of) == session:
                    found.add(int(path.name))
    more = found
    while more:
        more = {pid for pid, parent in parents.items() if parent in more} - found
        found |= more
    return sorted(found)


def _ended(code: int) -> str:
    """A code as people know it: a signal by its name."""
    number = -code if code < 0 else code - 128  # the latter of a shell, or of `penstock run`
    with contextlib.suppress(ValueError):
        return f"ended by {signal.Signals(number).name}"
    return f"ended with {code}"


def tail(text: str) -> str:
    """The last words of a program, on one line; what cannot be printed as a question mark."""
    words = " ".join(text.split())[-TAIL_CHARACTERS:]
    return "".join(one if one.isprintable() else "?" for one in words)
