"""A listening local socket that replaces whatever an earlier process left at its path."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_SO_PASSRIGHTS = 83  # SO_PASSRIGHTS, since Linux 6.16


def listening_socket(
    path: Path, kind: int, *, mode: int, backlog: int, uid: int | None = None
) -> socket.socket:
    """A non-blocking socket that listens at `path`, where it appears only when it is ready.

    Its folder is opened by descriptor, because the path may be longer than a socket address allows.

    Args:
        path: Where the socket listens. Anything at that path is replaced.
        kind: socket.SOCK_STREAM or socket.SOCK_SEQPACKET.
        mode: The file mode, which decides who may connect.
        backlog: How many connections may wait; the kernel refuses more.
        uid: The owner of the socket's file; None for our own user.

    Raises:
        OSError: the socket cannot be created; nothing is left behind.
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

    Closing the last reference to a file may block on its file system, and a user may control that
    file system. Before Linux 6.16 the option does not exist.
    """
    with contextlib.suppress(OSError):
        listening.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)
