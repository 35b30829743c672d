"""Helper process for system calls that may never return, which can be abandoned.

Some reads must wait for kernel locks that a user's program can hold: the lock of its memory map
while its file system does not respond, of its credentials during execve, or of a file that it
writes from such memory. A thread that waits for such a lock cannot be ended. Therefore a thread of
the program `penstock-aside` makes the call; see shim/native/aside/aside.c.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import struct
import subprocess
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from penstock_shim.paths import aside_path

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

READS = ("stat", "environ", "cmdline", "maps", "smaps_rollup", "ns/pid", "ns/time", "ns/mnt")
"""Files and links of /proc/PID whose readers wait for locks that the process may hold.

For `environ` only Penstock's variables are returned, for `ns/mnt` also the user who can mount in
the namespace (node/tenants/mount_lookup.py).
"""
_CUT, _REMOVE, _OWN = range(len(READS), len(READS) + 3)
_REQUEST, _ANSWER = struct.Struct("=IIqII"), struct.Struct("=IiqQ")
SILENT_S = 1.0  # a helper that sends nothing for this time is abandoned
LONGEST_S = 3.0  # for all responses to one request
MOST_LEFT = 8  # most abandoned helpers that have not ended
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 16.0  # before a file whose read blocked is tried again
_MOST_PAUSES = 50_000
_RECEIVED_BYTES = 1 << 18


class _Answer(NamedTuple):
    error: int  # errno, or 0 for success
    raw: bytes


class _Pause(NamedTuple):
    until_s: float
    length_s: float


class Aside:
    """One helper process, which is started when first needed. Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._owner = 0  # the pid that started the helper, because a forked child starts its own
        self._question = 0
        self._received = b""
        self._left: list[subprocess.Popen[bytes]] = []
        self._pauses: dict[tuple[int, str], _Pause] = {}

    def read_many(self, pids: Iterable[int], name: str) -> dict[int, bytes]:
        """/proc/PID/`name` of each process, without those that have ended or block the read."""
        answers = self._read(list(pids), name)
        return {pid: answer.raw for pid, answer in answers.items() if not answer.error}

    def read(self, pid: int, name: str) -> bytes:
        """The content of /proc/PID/`name`.

        Raises:
            OSError: the process has ended or is hidden.
            TimeoutError: the process blocks the read.
        """
        answer = self._read([pid], name).get(pid, _Answer(errno.ETIMEDOUT, b""))
        if answer.error:
            raise OSError(answer.error, os.strerror(answer.error), f"/proc/{pid}/{name}")
        return answer.raw

    def cut(self, file: Path, size_bytes: int) -> None:
        """Truncates a file and removes its user attributes.

        Raises:
            OSError: the file cannot be changed.
            TimeoutError: a process holds the file's lock; the file is truncated when the process
                releases it.
        """
        self._change(_CUT, file, size_bytes)

    def remove(self, folder: Path) -> None:
        """Removes as much as possible of a folder. Raises TimeoutError like `cut`."""
        self._change(_REMOVE, folder, 0)

    def own(self, file: Path, mode: int) -> None:
        """Changes the owner of a file or folder to this user. Raises OSError like `cut`."""
        self._change(_OWN, file, mode)

    def left(self) -> int:
        """How many abandoned helpers have not ended."""
        with self._guard:
            self._left = [one for one in self._left if one.poll() is None]
            return len(self._left)

    def close(self) -> None:
        """Ends the helper, which is started again when needed."""
        with self._guard:
            self._give_up()

    def _read(self, pids: list[int], name: str) -> dict[int, _Answer]:
        now_s = time.monotonic()
        asked = [pid for pid in pids if not self._is_left_in_peace(pid, name, now_s)]
        answers = self._ask(READS.index(name), asked)
        late = [pid for pid in asked if pid in answers and answers[pid].error == errno.ETIMEDOUT]
        if late or self._pauses:
            self._note(name, now_s, asked, late)
        for pid in asked:
            if pid in answers and answers[pid].error == errno.EBUSY:
                answers[pid] = _Answer(errno.ETIMEDOUT, b"")
        return answers

    def _is_left_in_peace(self, pid: int, name: str, now_s: float) -> bool:
        pause = self._pauses.get((pid, name)) if self._pauses else None
        return pause is not None and now_s < pause.until_s

    def _note(self, name: str, now_s: float, asked: Collection[int], late: Collection[int]) -> None:
        """Pauses reads of each process that blocked a read, each time for longer."""
        for pid in asked:
            before = self._pauses.pop((pid, name), None)
            if pid in late:
                length_s = 2 * before.length_s if before else _FIRST_PAUSE_S
                length_s = min(length_s, _LONGEST_PAUSE_S)
                self._pauses[pid, name] = _Pause(now_s + length_s, length_s)
        while len(self._pauses) > _MOST_PAUSES:
            del self._pauses[next(iter(self._pauses))]

    def _change(self, what: int, file: Path, number: int) -> None:
        path = os.fsencode(file)
        answer = self._ask(what, [number], path).get(number, _Answer(errno.ETIMEDOUT, b""))
        if answer.error:
            code = errno.ETIMEDOUT if answer.error == errno.EBUSY else answer.error
            raise OSError(code, os.strerror(code), str(file))

    def _ask(self, what: int, numbers: Collection[int], path: bytes = b"") -> dict[int, _Answer]:
        """The responses by number; a number without a response is missing."""
        if not numbers:
            return {}
        with self._guard:
            try:
                connection = self._open()
            except (OSError, subprocess.SubprocessError):
                return {}
            self._question = (self._question + 1) & 0xFFFFFFFF
            requests = b"".join(
                _REQUEST.pack(self._question, what, number, len(path), 0) + path
                for number in numbers
            )
            try:
                found = self._exchange(connection, requests, len(numbers))
            except OSError:
                found = {}
                self._give_up()
            if any(one.error == errno.EBUSY for one in found.values()):
                self._give_up()  # all its threads are blocked, so use a new helper
            return found

    def _open(self) -> socket.socket:
        """The connection. Raises OSError if no helper can start, or too many are abandoned."""
        if self._owner != os.getpid():
            self._process = self._socket = None
            self._left, self._received = [], b""
        if self._socket is not None:
            return self._socket
        self._left = [one for one in self._left if one.poll() is None]
        if len(self._left) >= MOST_LEFT:
            raise OSError(errno.EBUSY, "too many helper processes wait for locks that users hold")
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [str(aside_path())],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    env={},
                )
            except BaseException:
                ours.close()
                raise
        ours.setblocking(False)
        self._socket, self._owner, self._received = ours, os.getpid(), b""
        return ours

    def _exchange(
        self, connection: socket.socket, requests: bytes, count: int
    ) -> dict[int, _Answer]:
        """Sends requests, receives responses. Raises OSError if the helper ended or is silent."""
        found: dict[int, _Answer] = {}
        left = memoryview(requests)
        poll = select.poll()
        end_s = time.monotonic() + LONGEST_S
        while len(found) < count and time.monotonic() < end_s:
            poll.register(connection, select.POLLIN | (select.POLLOUT if left else 0))
            ready = poll.poll(SILENT_S * 1000)
            if not ready:
                raise TimeoutError
            if left and ready[0][1] & select.POLLOUT:
                with contextlib.suppress(BlockingIOError):
                    left = left[connection.send(left) :]
            if ready[0][1] & ~select.POLLOUT:
                raw = connection.recv(_RECEIVED_BYTES)
                if not raw:
                    raise ConnectionError
                self._take(raw, found)
        if left:
            raise TimeoutError  # the helper has received only part of the requests
        return found

    def _take(self, raw: bytes, found: dict[int, _Answer]) -> None:
        """Parses complete responses; drops late responses to earlier requests."""
        raw, at = self._received + raw, 0
        while len(raw) - at >= _ANSWER.size:
            question, error, number, size_bytes = _ANSWER.unpack_from(raw, at)
            end = at + _ANSWER.size + size_bytes
            if len(raw) < end:
                break
            if question == self._question:
                found[number] = _Answer(error, raw[at + _ANSWER.size : end])
            at = end
        self._received = raw[at:]

    def _give_up(self) -> None:
        if self._socket is None or self._process is None:
            return
        self._socket.close()
        with contextlib.suppress(OSError):
            self._process.send_signal(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.05)
        if self._process.poll() is None:
            self._left.append(self._process)
        self._process = self._socket = None


PROCESSES = Aside()
"""The helper for reads of /proc."""
FILES = Aside()
"""The helper for changes to tenants' files."""
