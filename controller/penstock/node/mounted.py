"""Whose usage page a process has mounted where containers have their tenant's.

What lies there may be anything: a user's program makes a mount namespace of its own, and links or
mounts there what it likes, also another tenant's page, though it may not open it. A page tells
whose a process is only if none but root, or the user whose page it is, can have put it there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock_shim.paths import MOUNTED_TENANT

if TYPE_CHECKING:
    from collections.abc import Iterator

_NS_GET_USERNS = 0xB701  # include/uapi/linux/nsfs.h
_NS_GET_OWNER_UID = 0xB704
_WAY = MOUNTED_TENANT.strip("/").split("/")
_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class MountedPage:
    """A page that a process has mounted."""

    device: int  # st_dev …
    inode: int
    by_root: bool  # else by the user whose page it is

    @property
    def identity(self) -> tuple[int, int]:
        """What tells files apart."""
        return self.device, self.inode


def mounted_page(pid: int) -> MountedPage | None:
    """The tenant's page in the container of `pid`; None: none that says whose it is.

    A process that sees the mounts that we see is in no container.
    """
    try:
        thread, namespace = _open_namespace(pid)
        try:
            if _inode(namespace) == _own_inode("mnt"):
                return None
            owner = _owner(namespace)
        finally:
            os.close(namespace)
        # Before that nothing is looked up: its root may be a file system that never answers.
        return None if owner is None else _page_below(f"{thread}/root", owner)
    except OSError:
        return None


def _open_namespace(pid: int) -> tuple[str, int]:
    """A living thread's folder in /proc, and its mount namespace, open. Raises OSError: none is."""
    folder, flags = f"/proc/{pid}", os.O_RDONLY | os.O_CLOEXEC
    try:
        return folder, os.open(f"{folder}/ns/mnt", flags)
    except FileNotFoundError:  # the first thread may end before others, and tells nothing then
        for one in os.listdir(f"{folder}/task"):  # noqa: PTH208
            thread = f"{folder}/task/{one}"
            with contextlib.suppress(FileNotFoundError):
                return thread, os.open(f"{thread}/ns/mnt", flags)
        raise


def _page_below(root: str, owner: int) -> MountedPage | None:
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(_opened(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        for name in _WAY:
            above = folder
            folder = stack.enter_context(_opened(name, _STEP | os.O_DIRECTORY, folder))
        found = os.stat("usage", dir_fd=folder, follow_symlinks=False)
        # A page may be linked to another place by hand, a mount is made by who owns the namespace.
        if _mount(folder) == _mount(above):
            return None
    by_root = owner == os.geteuid()
    if not by_root and owner != found.st_uid:
        return None
    return MountedPage(found.st_dev, found.st_ino, by_root)


def _owner(namespace: int) -> int | None:
    """Who can mount there: whoever made the user namespace that owns it. None: a stranger."""
    try:
        users = fcntl.ioctl(namespace, _NS_GET_USERNS)
    except OSError:  # of a user namespace that is none of ours
        return None
    try:
        if _inode(users) == _own_inode("user"):
            return os.geteuid()  # made by root, or by one who could do as much here
        raw = fcntl.ioctl(users, _NS_GET_OWNER_UID, struct.pack("I", 0))
    finally:
        os.close(users)
    return int(struct.unpack("I", raw)[0])


@contextlib.contextmanager
def _opened(path: str, flags: int, folder: int | None = None) -> Iterator[int]:
    descriptor = os.open(path, flags, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _inode(namespace: int) -> int:
    return os.fstat(namespace).st_ino


def _own_inode(kind: str) -> int:
    return os.stat(f"/proc/self/ns/{kind}").st_ino  # noqa: PTH116 - for each process


def _mount(descriptor: int) -> bytes:
    """The mount that the open file lies in."""
    with open(f"/proc/self/fdinfo/{descriptor}", "rb") as stream:  # noqa: PTH123
        return next(
            (line for line in stream.read(4096).splitlines() if line[:7] == b"mnt_id:"), b""
        )
