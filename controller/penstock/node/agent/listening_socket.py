"""A local socket that listens at a path, in the place of what an earlier process left there."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_SO_PASSRIGHTS = 83  # the same, since Linux 6.16


def listening_socket(
    path: Path, kind: int, *, mode: int, backlog: int, uid: int | None = None
) -> socket.socket:
    """A non-blocking socket that listens at `path` and appears there whole.

    Its folder is opened by descriptor: the path may exceed the length limit of addresses.

    Args:
        path: Where it listens; whatever is there is replaced.
        kind: socket.SOCK_STREAM or socket.SOCK_SEQPACKET.
        mode: File mode: who may connect.
        backlog: Connections that may wait; the kernel refuses further ones.
        uid: Its file's owner; None: our own user.

    Raises:
        OSError: it cannot be made; nothing is left behind.
    """
    aside = f".{path.name}.new"  # one process at a time uses this folder
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside, dir_fd=folder)
        made = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK)
        try:
            _take_no_files(made)
            made.bind(f"/proc/self/fd/{folder}/{aside}")
            if uid is not None and uid != os.geteuid():
                os.chown(aside, uid, -1, dir_fd=folder, follow_symlinks=False)
            os.chmod(aside, mode, dir_fd=folder)
            made.listen(backlog)
            os.replace(aside, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            made.close()
            with contextlib.suppress(OSError):
                os.unlink(aside, dir_fd=folder)
            raise
    finally:
        os.close(folder)
    return made


def _take_no_files(listening: socket.socket) -> None:
    """Makes the socket and the connections that it accepts refuse open files (SCM_RIGHTS).

    Closing the last reference to a file may block on its file system, which may be a user's own.
    Before Linux 6.16 there is no such option.
    """
    with contextlib.suppress(OSError):
        listening.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)
