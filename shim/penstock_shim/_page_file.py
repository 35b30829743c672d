"""Page files, which are created atomically, checked before use, and never replaced."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import secrets
import struct
from typing import TYPE_CHECKING, Literal

from penstock_shim._native import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock_shim._native import CData

Kind = Literal["quota", "usage"]

_ADVICE = {
    "does not exist": "start the tenant with `penstock run`, or check the state directory",
    "cannot be read": "check the permissions of the file and of the directories above it",
    "is a page of another version": (
        "use the release that wrote it, or let the tenant end and start it again"
    ),
}
_ELSEWHERE = "keep tenants elsewhere (--state-dir, $PENSTOCK_STATE_DIR)"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DEFAULT_ADVICE = "let the tenant end, remove its directory and start it again"
# Advice that suits only users with a shell on the machine.
ADVICES = frozenset({*_ADVICE.values(), _DEFAULT_ADVICE})


class PageError(Exception):
    """Error for an unusable quota or usage page, with the problem and what to do about it."""

    def __init__(self, path: Path, what: str, advice: str | None = None) -> None:
        self.path = path
        self.what = what
        self.advice = advice or _ADVICE.get(what, _DEFAULT_ADVICE)
        super().__init__(f"{path} {what}: {self.advice}")


def survive_lost_pages() -> None:
    """Makes this process survive if a mapped page is truncated or its file system is full.

    The process sees an empty page instead of being ended by SIGBUS. Data that it writes to that
    page is lost. For processes that do more than read pages.
    """
    lib.penstock_survive_lost_pages()


def lost_pages() -> int:
    """Returns the number of lost mapped pages that were replaced by empty ones."""
    return int(lib.penstock_lost_pages())


def page_size(kind: Kind) -> int:
    """Returns the size of a page of this kind in bytes."""
    return int(ffi.sizeof(f"penstock_{kind}_page"))


def page_bytes() -> int:
    """Returns the size of both pages of a tenant in bytes."""
    return page_size("quota") + page_size("usage")


def usage_page_bytes() -> int:
    """Returns the size of a usage page in bytes."""
    return page_size("usage")


def open_page(path: Path, kind: Kind, *, writable: bool) -> int:
    """Opens and checks a page. Returns a close-on-exec descriptor. Raises `PageError`."""
    flags = os.O_RDWR if writable else os.O_RDONLY
    try:
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError:
        raise PageError(path, "does not exist") from None
    except IsADirectoryError:
        raise PageError(path, "is not a regular file") from None
    except OSError as error:
        raise PageError(
            path, f"cannot be read ({error.strerror})", _ADVICE["cannot be read"]
        ) from None
    try:
        check_page(fd, path, kind)
    except PageError:
        os.close(fd)
        raise
    return fd


def check_page(fd: int, path: Path, kind: Kind) -> None:
    """Checks a page's magic, version and size, using the shim's own code. Raises `PageError`."""
    code = lib.penstock_binding_page_check(fd, kind == "quota")
    if code != 0:
        what = text_of(lib.penstock_binding_error_text(code))
        advice = None
        if what in _ADVICE and "version" in what:
            advice = _ADVICE[what]
            what += _versions(fd)
        raise PageError(path, what, advice)


def _versions(fd: int) -> str:
    """Describes the version of a page and the versions that this release reads."""
    (found,) = struct.unpack_from("=I", os.pread(fd, 16, 0), 8)
    oldest, newest = int(lib.PENSTOCK_ABI_OLDEST), int(lib.PENSTOCK_ABI_VERSION)
    if oldest <= found <= newest:
        return f" (version {found}, but of another size)"
    before = " and the one before" if oldest < newest else ""
    return f" (version {found}; this release reads version {newest}{before})"


def text_of(pointer: CData) -> str:
    """Decodes a NUL-terminated C string or char array, replacing unprintable characters."""
    raw = ffi.string(pointer)
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


@contextlib.contextmanager
def mapped(fd: int, kind: Kind, *, writable: bool = True) -> Iterator[CData]:
    """Maps a page as a C struct for the duration of the `with` block."""
    view = Mapping(fd, kind, writable=writable)
    try:
        yield view.page
    finally:
        view.close()


class Mapping:
    """Mapping of a page, whose attribute `page` is a C struct until `close`."""

    def __init__(self, fd: int, kind: Kind, *, writable: bool = True) -> None:
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self._memory = mmap.mmap(fd, page_size(kind), access=access)
        self._buffer = ffi.from_buffer(self._memory, require_writable=writable)
        self.page: CData = ffi.cast(f"penstock_{kind}_page *", self._buffer)

    def close(self) -> None:
        """Unmaps the page, which must not be used afterwards."""
        self.page = None
        ffi.release(self._buffer)
        self._memory.close()


def create_page(
    path: Path,
    kind: Kind,
    fill: Callable[[CData], None],
    *,
    mode: int,
) -> None:
    """Creates a page file atomically: it gets its name only when it is complete.

    All storage is allocated here, so that a full file system is an error now and not a SIGBUS later
    in a program that writes to its page. (On a file system that does not support this, glibc writes
    into each block.)

    Args:
        path: Path of the file. A missing directory is created (0700).
        kind: Kind of page.
        fill: Function that initialises the zeroed page.
        mode: Permission bits of the file, regardless of the umask.

    Raises:
        PageError: the page already exists or cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    spare = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        fd = os.open(spare, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, page_size(kind))
            with mapped(fd, kind) as page:
                fill(page)
            os.fchmod(fd, mode)
            # Uses link instead of rename, because a page that is mapped must never be replaced.
            os.link(spare, path)
        finally:
            os.close(fd)
            spare.unlink()
    except FileExistsError:
        raise PageError(path, "exists already", "open it, or choose another tenant name") from None
    except OSError as error:
        size = f"{page_size(kind) >> 10} KiB" if error.errno in _FULL else ""
        advice = (
            f"it takes {size}: free up disk space, or {_ELSEWHERE}"
            if size
            else f"check permissions, or {_ELSEWHERE}"
        )
        raise PageError(path, f"cannot be written ({error.strerror})", advice) from None
