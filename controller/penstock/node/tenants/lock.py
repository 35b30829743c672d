"""File locks that can be taken over from a killed process that hangs in the kernel.

The kernel releases a lock when the last thread of its holder has ended. A thread that waits for a
disk, or for something that a user controls, may never end. Once such a thread has received SIGKILL
it runs no more code, so its lock may be taken over, by locking a new file in place of the old one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from penstock.devices.proc_files import read_proc_text

_SIGKILL_BIT = 1 << 8


def take(file: Path) -> int:
    """Locks `file`, which is created if missing, until the returned descriptor is closed.

    Raises:
        BlockingIOError: another process holds the lock.
    """
    try:
        return _take(file)
    except BlockingIOError:
        taken = _take_from_dead(file)
        if taken is None:
            raise
        return taken


def wait_for(file: Path) -> int:
    """Takes the lock like `take`, but waits for the current holders."""
    try:
        return take(file)
    except BlockingIOError:
        return _take(file, 0)


def _take(file: Path, way: int = fcntl.LOCK_NB) -> int:
    while True:
        descriptor = _open(file)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | way)
            if _is_at(descriptor, file):  # the file was not replaced meanwhile
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _open(file: Path) -> int:
    return os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _is_at(descriptor: int, file: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), file.lstat())
    return False


def _take_from_dead(file: Path) -> int | None:
    """The lock on a new file if all holders of the old one are dead, else None.

    One process at a time does this, because a second one would remove the file that the first just
    created.
    """
    if not _is_held_by_dead(file):
        return None
    turn = _open(file.with_name(f"{file.name}.turn"))
    try:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if _is_held_by_dead(file):
            file.unlink()
        return _take(file)
    except (BlockingIOError, FileNotFoundError):
        return None
    finally:
        os.close(turn)


def _is_held_by_dead(file: Path) -> bool:
    holders = _holders(file)
    return bool(holders) and all(map(_hangs_dead, holders))


def _holders(file: Path) -> set[int]:
    """Pids of the processes that hold the lock, 0 for one in another pid namespace."""
    found = file.stat()
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return set()
    locks = [words for line in lines if len(words := line.split()) > 5]
    return {int(words[4]) for words in locks if words[1] == "FLOCK" and words[5] == place}


def _hangs_dead(pid: int) -> bool:
    """Whether all threads have ended or been killed, but not all of them have ended."""
    if pid <= 0:
        return False
    try:
        states = [_state(pid, thread) for thread in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208
    except OSError:
        return False  # the process has just ended
    return all(ended or killed for ended, killed in states) and not all(one for one, _ in states)


def _state(pid: int, thread: str) -> tuple[bool, bool]:
    """Whether the thread has ended, and whether SIGKILL is pending until it leaves the kernel."""
    status = read_proc_text(f"{pid}/task/{thread}", "status")
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    ended = fields.get("State", "").strip()[:1] in {"Z", "X"}
    return ended, bool(int(fields.get("SigPnd", "0"), 16) & _SIGKILL_BIT)
