"""The person who owns a uid: limits apply to people, and a person may have many uids.

A uid belongs to

    its owner     if /etc/subuid assigns it to a user (rootless containers, newuidmap)
    itself        if it has an account
    its creator   if it has no account: the user who created the caller's user namespace, as
                  reported by the kernel; of nested namespaces, the creator of the outermost
    nobody        otherwise; all such uids together count as one person

Without this rule, a user with 65,536 subordinate uids would have every limit 65,536 times.
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

NOBODY = -1  # the owner of all uids without an owner
SUBORDINATE = Path("/etc/subuid")
ACCOUNTS_KEPT_S, MOST_ACCOUNTS = 10.0, 4096
_CHECK_PERIOD_S = 1.0  # between checks of the file for changes
_DEEPEST = 34  # the kernel allows 32 nested user namespaces
# include/uapi/linux/nsfs.h
_NS_GET_PARENT, _NS_GET_OWNER_UID = 0xB702, 0xB704


class People:
    """Finds the owners of uids. Thread-safe. Look-ups block on the system's user directory."""

    def __init__(self, subordinate: Path = SUBORDINATE) -> None:
        """`subordinate`: a file in the format of subuid(5)."""
        self._file = subordinate
        self._lock = threading.Lock()
        self._checked_s = -_CHECK_PERIOD_S
        self._stamp: tuple[int, int, int] | None = None
        self._ranges: list[tuple[int, int, int]] = []  # first uid, last uid + 1, owner
        self._accounts: dict[int, tuple[float, str | None]] = {}

    def owner_of(self, uid: int, pid: int | None = None) -> int:
        """The owner of `uid`, or `NOBODY`. `pid`: a live process that has this uid."""
        found = self._owner(uid)
        if found is None and pid:
            maker = maker_of_namespace(pid)
            if maker:  # root is no owner, as it creates namespaces for others
                found = self._owner(maker)
        return NOBODY if found is None else found

    def name_of(self, uid: int) -> str:
        """The account's name, or the number if the uid has no account, as in containers."""
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
        """Reads the file of subordinate uids if it changed; keeps the old content on failure."""
        now_s = time.monotonic()
        if now_s - self._checked_s < _CHECK_PERIOD_S:
            return
        self._checked_s = now_s
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
            with contextlib.suppress(ValueError, KeyError):  # malformed line, or no such user
                name, first, count = words
                owner = int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
                if owner and int(count) > 0 <= int(first):
                    ranges.append((int(first), int(first) + int(count), owner))
        self._ranges = ranges


def maker_of_namespace(pid: int) -> int | None:
    """The uid that created the outermost user namespace of the process below ours.

    None if the process is in our namespace, or the creator cannot be determined.
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
    except OSError:  # the namespace is not below ours
        return None
    finally:
        os.close(descriptor)
    return None
