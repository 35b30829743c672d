"""Safe reads of small files in a tenant's directory, which reject pipes, links and huge files."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MOST_BYTES = 4 << 20  # size limit of a record


def read_record(file: Path, *, errors: str = "strict") -> str:
    """The text of `file`. Never waits for a pipe's other end, and never follows a link.

    Raises:
        OSError: the file cannot be read, is not a regular file, or is too large.
        UnicodeDecodeError: the file is not UTF-8.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(file, flags)
    try:
        check_regular(descriptor, file)
        with open(descriptor, "rb", closefd=False) as stream:
            raw = stream.read(MOST_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(raw) > MOST_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(file))
    return raw.decode("utf-8", errors)


def check_regular(descriptor: int, file: Path) -> None:
    """Raises OSError if the open `file` is not a regular file."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(file))
