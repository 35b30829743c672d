"""Look-up of a container process's tenant by the usage page that is mounted into the container.

The look-up reads the kernel's list of the process's mounts and resolves no path, because another
mount namespace contains whatever a user mounted there, and a user's file system may never respond.

A mount alone does not prove which tenant a process belongs to. A user can create a mount namespace
and mount anything in it, even another tenant's folder that the user may not read. So a mount counts
only if the user who may mount in that namespace is root or owns the page.
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
# A container has a few dozen mounts, with the tenant's page among the first. A user may create
# 100,000 mounts, which the kernel formats anew for each process. Reading this much takes 0.1 ms.
_MOST_BYTES, _MOST_BYTES_OF_A_USER = 1 << 18, 1 << 16
_MOST_PAGES = 16  # mounted on top of one another
_PAGE = "usage"
_FOLDER_POINT = os.fsencode(MOUNTED_TENANT)
_PAGE_POINT = _FOLDER_POINT + b"/" + _PAGE.encode()
# These strings as they appear in a line; neither has a character that the kernel escapes.
_FOLDER_WORD, _PAGE_WORD = b" %s " % _FOLDER_POINT, b" %s " % _PAGE_POINT
_ESCAPED = re.compile(rb"\\([0-7]{3})")


class PageId(NamedTuple):
    """Identifies a usage page, whichever mount it is seen through."""

    device: bytes  # of the file system, in the form major:minor of mount lists
    path: bytes  # relative to the file system's root


class Page(NamedTuple):
    """A tenant's usage page and its owner."""

    identity: PageId
    uid: int


@dataclass(frozen=True)
class MountedPages:
    """The usage pages mounted at a container's usual paths; normally there is at most one."""

    identities: tuple[PageId, ...]
    mounted_by: int  # uid of the user who may have mounted them

    @property
    def by_root(self) -> bool:
        """Whether only root, or the agent's own user, may have mounted them."""
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
    """A mount namespace, and the user namespace that owns it."""

    number: int
    thread: int  # a thread in it
    users: int  # inode of the user namespace; -1 if it is invisible to us
    maker: int  # uid of the user namespace's creator


def page_of(usage_page: Path) -> Page | None:
    """The identity of a usage page of one of our tenants, None if the page is gone."""
    return pages_of([usage_page])[0]


def pages_of(usage_pages: Sequence[Path]) -> list[Page | None]:
    """The identities of several usage pages, in order; reads our own mounts only once."""
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
    """The usage pages mounted into the container of a process, None if there are none.

    A process in our own mount namespace is not in a container.

    Args:
        pid: The process.
        is_asked_for: Whether to read mounts that the user with the given uid may have made.

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
    """The complete lines of a mount list within its first `most_bytes` bytes."""
    rest, left = b"", most_bytes
    while left > 0 and (piece := os.read(descriptor, min(left, 1 << 16))):
        left -= len(piece)
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole


def _mount_of(line: bytes) -> _Mount:
    """Parses a line of /proc/PID/mountinfo; see proc_pid_mountinfo(5)."""
    number, _, device, root, point = line.split(b" ", 5)[:5]
    return _Mount(number, device, _unescaped(root), _unescaped(point))


def _unescaped(word: bytes) -> bytes:
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 8)]), word)


def _join(folder: bytes, name: bytes) -> bytes:
    return folder.rstrip(b"/") + b"/" + name


def _namespace(pid: int) -> _Namespace:
    """The mount namespace of a live thread of `pid`, as the main thread may have ended.

    Raises:
        OSError: no thread is alive, or the namespace cannot be read.
    """
    if os.geteuid() == 0 and pid != os.getpid():
        return _Namespace(*map(int, PROCESSES.read(pid, "ns/mnt").split()))
    descriptor = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _Namespace(os.fstat(descriptor).st_ino, pid, *_users(descriptor))
    finally:
        os.close(descriptor)


def _users(namespace: int) -> tuple[int, int]:
    """The owning user namespace and its creator's uid, -1 for both if invisible to us."""
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
    """The uid that may mount there, the creator of the owning user namespace; None if unknown."""
    if namespace.users == _own_number("user"):
        return os.geteuid()  # made by root or a user with equal rights
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
    """The id of the mount that the open file lies on, as in lists of mounts."""
    with open(f"/proc/self/fdinfo/{descriptor}", "rb") as stream:  # noqa: PTH123
        words = (line.split() for line in stream.read(4096).splitlines())
        return next((value for name, value in words if name == b"mnt_id:"), b"")
