"""Safe reads of small files in a tenant's directory: no pipes, no links, no huge files."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MOST_BYTES = 4 << 20  # of a record; a larger file is rejected


def read_record(file: Path, *, errors: str = "strict") -> str:
    """The text of `file`. Never waits for the other end of a pipe, never follows a link.

    Raises OSError (also if the file is not regular, or is too large) and UnicodeDecodeError.
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
    """Raises OSError unless the open `file` is a regular file."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(file))
