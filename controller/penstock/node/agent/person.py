"""Who a uid of this machine belongs to: limits are a person's, and one person may have many uids.

A uid belongs to

    its owner     where /etc/subuid gives it to a user (rootless containers, newuidmap)
    itself        where it has an account
    who made it   where it has none: the user who made the caller's user namespace, which the kernel
                  tells; of nested ones the outermost
    nobody        otherwise. All such uids are one person together

Without this, whoever has 65,536 subordinate uids would have as many times each limit.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import struct
import threading
import time
from pathlib import Path

from penstock.node.tenants.json_files import read_record

NOBODY = -1  # the owner of all uids that nobody has
SUBORDINATE = Path("/etc/subuid")
ACCOUNTS_KEPT_S, MOST_ACCOUNTS = 10.0, 4096
_LOOK_S = 1.0  # between looks whether the file has changed
_DEEPEST = 34  # the kernel nests 32 user namespaces
# include/uapi/linux/nsfs.h
_NS_GET_PARENT, _NS_GET_OWNER_UID = 0xB702, 0xB704


class People:
    """Tells owners of uids. From any thread; a directory service may take its time."""

    def __init__(self, subordinate: Path = SUBORDINATE) -> None:
        """`subordinate`: the file as subuid(5) describes it."""
        self._file = subordinate
        self._lock = threading.Lock()
        self._looked_s = -_LOOK_S
        self._stamp: tuple[int, int, int] | None = None
        self._ranges: list[tuple[int, int, int]] = []  # first, past the last, owner
        self._accounts: dict[int, tuple[float, str | None]] = {}

    def owner_of(self, uid: int, pid: int | None = None) -> int:
        """Whose `uid` is; `NOBODY`. `pid`: of a process that has it, which did not end yet."""
        found = self._owner(uid)
        if found is None and pid:
            maker = maker_of_namespace(pid)
            if maker:  # root makes namespaces for everybody
                found = self._owner(maker)
        return NOBODY if found is None else found

    def name_of(self, uid: int) -> str:
        """The account's name; the number where there is none, as in containers."""
        return self._account(uid) or str(uid)

    def _owner(self, uid: int) -> int | None:
        with self._lock:
            self._read()
            for first, end, owner in self._ranges:
                if first <= uid < end:
                    return owner
        return uid if self._account(uid) is not None else None

    def _account(self, uid: int) -> str | None:
        now_s = time.monotonic()
        kept = self._accounts.get(uid)
        if kept is None or now_s - kept[0] > ACCOUNTS_KEPT_S:
            name = None
            with contextlib.suppress(KeyError, OverflowError):
                name = pwd.getpwuid(uid).pw_name
            if len(self._accounts) >= MOST_ACCOUNTS:
                self._accounts = {}
            kept = self._accounts[uid] = (now_s, name)
        return kept[1]

    def _read(self) -> None:
        """The file, when it has changed. One that cannot be read counts as it was."""
        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        try:
            found = self._file.stat()
            stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
            if stamp != self._stamp:
                self._take(read_record(self._file, errors="replace"))
                self._stamp = stamp
        except FileNotFoundError:
            self._take("")
            self._stamp = None
        except OSError:
            return

    def _take(self, text: str) -> None:
        ranges = []
        for line in text.splitlines():
            words = line.split("#")[0].strip().split(":")
            with contextlib.suppress(ValueError, KeyError):  # no line of ours, or no such user
                name, first, count = words
                owner = int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
                if owner and int(count) > 0 <= int(first):
                    ranges.append((int(first), int(first) + int(count), owner))
        self._ranges = ranges


def maker_of_namespace(pid: int) -> int | None:
    """Who made the process's outermost user namespace below ours, a uid of ours.

    None: it is in ours, or that cannot be told.
    """
    maker = None
    try:
        ours = os.stat("/proc/self/ns/user")  # noqa: PTH116
        descriptor = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        for _ in range(_DEEPEST):
            if os.path.samestat(os.fstat(descriptor), ours):
                return maker
            (maker,) = struct.unpack("I", fcntl.ioctl(descriptor, _NS_GET_OWNER_UID, bytes(4)))
            above = fcntl.ioctl(descriptor, _NS_GET_PARENT)
            os.close(descriptor)
            descriptor = above
    except OSError:  # it does not lie below ours
        return None
    finally:
        os.close(descriptor)
    return None
