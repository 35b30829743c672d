"""Finds the tenant of a containerised process by the usage page that is mounted into it.

The kernel's list of the process's mounts answers this, without a path lookup: another mount
namespace holds whatever a user put there, and a user's file system may never answer a lookup.

A mount alone does not prove which tenant a process belongs to. A user can make a mount namespace
and mount anything there, even another tenant's folder that it may not read. So a mount counts only
if it can have been made by root or by the user who owns the page.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from penstock.devices.aside import PROCESSES
from penstock_shim.paths import MOUNTED_TENANT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

_NS_GET_USERNS = 0xB701  # include/uapi/linux/nsfs.h
_NS_GET_OWNER_UID = 0xB704
# A container has some dozens of mounts, the tenant's page among the first. A user may make 100,000,
# which the kernel formats again for each process. Reading this much takes a tenth of a millisecond.
_MOST_BYTES, _MOST_BYTES_OF_A_USER = 1 << 18, 1 << 16
_MOST_PAGES = 16  # mounted one over the other
_PAGE = "usage"
_FOLDER_POINT = os.fsencode(MOUNTED_TENANT)
_PAGE_POINT = _FOLDER_POINT + b"/" + _PAGE.encode()
# As they stand in a line: neither has a character that the kernel escapes.
_FOLDER_WORD, _PAGE_WORD = b" %s " % _FOLDER_POINT, b" %s " % _PAGE_POINT
_ESCAPED = re.compile(rb"\\([0-7]{3})")


class PageId(NamedTuple):
    """Identifies a usage page, independent of the mount through which it is seen."""

    device: bytes  # of the file system, as lists of mounts name it: major:minor
    path: bytes  # below the file system's own root


class Page(NamedTuple):
    """A tenant's usage page and its owner."""

    identity: PageId
    uid: int


@dataclass(frozen=True)
class MountedPages:
    """The usage pages mounted at a container's usual paths: at most one, as a rule."""

    identities: tuple[PageId, ...]
    mounted_by: int  # uid of the user who can have mounted them

    @property
    def by_root(self) -> bool:
        """Whether only root, or the agent's own user, can have mounted them."""
        return self.mounted_by == os.geteuid()

    def tells_of(self, page: Page) -> bool:
        """Whether the process belongs to the tenant of `page`."""
        return page.identity in self.identities and (self.by_root or self.mounted_by == page.uid)


@dataclass(frozen=True)
class _Mount:
    number: bytes
    device: bytes
    root: bytes  # the mounted path within the file system
    point: bytes  # the mount point


class _Namespace(NamedTuple):
    """A mount namespace, and the user namespace that it belongs to."""

    number: int
    thread: int  # a thread in it
    users: int  # inode of the user namespace; -1: not one that we can see
    maker: int  # uid of the user namespace's creator


def page_of(usage_page: Path) -> Page | None:
    """The identity of one of our tenants' usage pages; None: it is gone."""
    return pages_of([usage_page])[0]


def pages_of(usage_pages: Sequence[Path]) -> list[Page | None]:
    """Like `page_of`, for many pages in order: reads our own mounts once."""
    with open("/proc/self/mountinfo", "rb") as stream:  # noqa: PTH123
        mounts = {one.number: one for one in map(_mount_of, stream)}
    return [_page_in(mounts, path) for path in usage_pages]


def _page_in(mounts: Mapping[bytes, _Mount], usage_page: Path) -> Page | None:
    try:
        with _opened(str(usage_page), os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC) as page:
            mount, uid = mounts.get(_mount_number(page)), os.fstat(page).st_uid
            place = os.fsencode(os.readlink(f"/proc/self/fd/{page}"))  # noqa: PTH115
    except OSError:
        return None
    if mount is None or not place.startswith(mount.point):
        return None
    below = place[len(mount.point) :].lstrip(b"/")
    return Page(PageId(mount.device, _join(mount.root, below)), uid)


def mounted_pages(
    pid: int, is_asked_for: Callable[[int], bool] = lambda _: True
) -> MountedPages | None:
    """The usage pages mounted into a process in a container; None: none.

    A process in our own mount namespace is not in a container.

    Args:
        pid: The process.
        is_asked_for: Whether to read mounts that the user of a given uid can have made.

    Raises:
        TimeoutError: the process cannot be read now.
    """
    try:
        namespace = _namespace(pid)
        if namespace.number == _own_number("mnt"):
            return None
        owner = _owner(namespace)
        if owner is None or not is_asked_for(owner):
            return None
        thread = f"/proc/{pid}/task/{namespace.thread}"
        with open(f"{thread}/mountinfo", "rb", buffering=0) as stream:  # noqa: PTH123
            most = _MOST_BYTES if owner == os.geteuid() else _MOST_BYTES_OF_A_USER
            found = tuple(itertools.islice(_pages(_lines(stream.fileno(), most)), _MOST_PAGES))
        return MountedPages(found, owner) if found else None
    except TimeoutError:
        raise
    except OSError:
        return None


def _pages(lines: Iterator[bytes]) -> Iterator[PageId]:
    for line in lines:
        if _FOLDER_WORD not in line and _PAGE_WORD not in line:
            continue
        mount = _mount_of(line)
        if mount.point == _PAGE_POINT:
            yield PageId(mount.device, mount.root)
        elif mount.point == _FOLDER_POINT:
            yield PageId(mount.device, _join(mount.root, _PAGE.encode()))


def _lines(descriptor: int, most_bytes: int) -> Iterator[bytes]:
    """Whole lines of a mount list, up to `most_bytes`."""
    rest, left = b"", most_bytes
    while left > 0 and (piece := os.read(descriptor, min(left, 1 << 16))):
        left -= len(piece)
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole


def _mount_of(line: bytes) -> _Mount:
    """A line of /proc/PID/mountinfo: see proc_pid_mountinfo(5)."""
    number, _, device, root, point = line.split(b" ", 5)[:5]
    return _Mount(number, device, _unescaped(root), _unescaped(point))


def _unescaped(word: bytes) -> bytes:
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 8)]), word)


def _join(folder: bytes, name: bytes) -> bytes:
    return folder.rstrip(b"/") + b"/" + name


def _namespace(pid: int) -> _Namespace:
    """The mount namespace of a living thread of `pid` (the first may have ended before others).

    Raises OSError if no thread lives or the namespace cannot be read.
    """
    if os.geteuid() == 0 and pid != os.getpid():
        return _Namespace(*map(int, PROCESSES.read(pid, "ns/mnt").split()))
    descriptor = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _Namespace(os.fstat(descriptor).st_ino, pid, *_users(descriptor))
    finally:
        os.close(descriptor)


def _users(namespace: int) -> tuple[int, int]:
    """Its user namespace and the uid of that one's creator; -1 if we cannot see it."""
    try:
        users = fcntl.ioctl(namespace, _NS_GET_USERNS)
    except OSError:
        return -1, -1
    try:
        raw = fcntl.ioctl(users, _NS_GET_OWNER_UID, struct.pack("I", 0))
        return os.fstat(users).st_ino, int(struct.unpack("I", raw)[0])
    finally:
        os.close(users)


def _owner(namespace: _Namespace) -> int | None:
    """The uid that can mount there: the creator of the owning user namespace. None: not known."""
    if namespace.users == _own_number("user"):
        return os.geteuid()  # made by root, or by a user with the same rights here
    return None if namespace.maker < 0 else namespace.maker


@contextlib.contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _own_number(kind: str) -> int:
    return os.stat(f"/proc/self/ns/{kind}").st_ino  # noqa: PTH116 - for each process


def _mount_number(descriptor: int) -> bytes:
    """The id of the mount that holds the open file, as mount lists show it."""
    with open(f"/proc/self/fdinfo/{descriptor}", "rb") as stream:  # noqa: PTH123
        words = (line.split() for line in stream.read(4096).splitlines())
        return next((value for name, value in words if name == b"mnt_id:"), b"")
