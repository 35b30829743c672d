"""Whose usage page a process has mounted where containers have their tenant's.

The kernel's list of a process's mounts tells, and no path is looked up: what lies in another mount
namespace is whatever a user put there, and a file system of a user's may never answer a lookup.

A mount alone does not tell whose a process is. A user makes a mount namespace of its own and mounts
there what it likes, also another tenant's folder, though it may not look into it. So a mount counts
only if root can have made it, or the user whose page it is.
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
# A container has some dozens of mounts, its tenant's among the first. A user may make 100,000, each
# of which the kernel writes out anew for each of its processes: a tenth of a millisecond for these.
_MOST_BYTES, _MOST_BYTES_OF_A_USER = 1 << 18, 1 << 16
_MOST_PAGES = 16  # mounted one over the other
_PAGE = "usage"
_FOLDER_POINT = os.fsencode(MOUNTED_TENANT)
_PAGE_POINT = _FOLDER_POINT + b"/" + _PAGE.encode()
# As words of a line: neither has a character that the kernel escapes.
_FOLDER_WORD, _PAGE_WORD = b" %s " % _FOLDER_POINT, b" %s " % _PAGE_POINT
_ESCAPED = re.compile(rb"\\([0-7]{3})")


class PageId(NamedTuple):
    """What tells usage pages apart, by whatever mounts they are seen."""

    device: bytes  # of the file system, as lists of mounts name it: major:minor
    path: bytes  # below the file system's own root


class Page(NamedTuple):
    """A tenant's usage page, and whose it is."""

    identity: PageId
    uid: int


@dataclass(frozen=True)
class MountedPages:
    """What a process has mounted in the places of a container's page: mostly one, if any."""

    identities: tuple[PageId, ...]
    mounted_by: int  # who can have mounted it, by uid

    @property
    def by_root(self) -> bool:
        """Whether nobody but root, or the agent's own user, can have."""
        return self.mounted_by == os.geteuid()

    def tells_of(self, page: Page) -> bool:
        """Whether the process is the tenant's whose page that is."""
        return page.identity in self.identities and (self.by_root or self.mounted_by == page.uid)


@dataclass(frozen=True)
class _Mount:
    number: bytes
    device: bytes
    root: bytes  # what of the file system is mounted
    point: bytes  # where


class _Namespace(NamedTuple):
    """A mount namespace, and the user namespace that it belongs to."""

    number: int
    thread: int  # that is in it
    users: int  # -1: none of ours
    maker: int  # of that: a uid


def page_of(usage_page: Path) -> Page | None:
    """The page of a tenant of ours; None: it is gone. Looks up a path of ours alone."""
    return pages_of([usage_page])[0]


def pages_of(usage_pages: Sequence[Path]) -> list[Page | None]:
    """The same for many, in their order: our own mounts are read once."""
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
    """What a process in a container has mounted where its tenant's page should be; None: nothing.

    A process that sees the mounts that we see is in no container.

    Args:
        pid: Of the process.
        is_asked_for: Whether its mounts are read, by the uid of who can have made them.
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
    """Whole lines of a list of mounts, as far as it is read."""
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
    """Of a living thread: the first one may end before others, and tells nothing then.

    Raises OSError: none is, or it cannot be told.
    """
    if os.geteuid() == 0 and pid != os.getpid():
        return _Namespace(*map(int, PROCESSES.read(pid, "ns/mnt").split()))
    descriptor = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _Namespace(os.fstat(descriptor).st_ino, pid, *_users(descriptor))
    finally:
        os.close(descriptor)


def _users(namespace: int) -> tuple[int, int]:
    """The user namespace that it belongs to, and who made that; -1: none of ours."""
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
    """Who can mount there: whoever made the user namespace that owns it. None: a stranger."""
    if namespace.users == _own_number("user"):
        return os.geteuid()  # made by root, or by one who could do as much here
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
    """Of the mount that the open file lies in, as lists of mounts have it."""
    with open(f"/proc/self/fdinfo/{descriptor}", "rb") as stream:  # noqa: PTH123
        words = (line.split() for line in stream.read(4096).splitlines())
        return next((value for name, value in words if name == b"mnt_id:"), b"")
