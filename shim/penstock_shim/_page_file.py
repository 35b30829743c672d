"""Page files: created completely or not at all, checked before use, never replaced."""

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
ADVICES = frozenset({*_ADVICE.values(), _DEFAULT_ADVICE})  # for users with a shell on the machine


class PageError(Exception):
    """An unusable quota or usage page: what happened, why, and what to do."""

    def __init__(self, path: Path, what: str, advice: str | None = None) -> None:
        self.path = path
        self.what = what
        self.advice = advice or _ADVICE.get(what, _DEFAULT_ADVICE)
        super().__init__(f"{path} {what}: {self.advice}")


def survive_lost_pages() -> None:
    """Makes this process survive the loss of a mapped page: truncated, or without storage.

    SIGBUS would end the process; instead it sees an empty page. For processes that do more than
    read pages; what they write there is lost.
    """
    lib.penstock_survive_lost_pages()


def lost_pages() -> int:
    """Number of mapped pages that were replaced by empty ones."""
    return int(lib.penstock_lost_pages())


def page_size(kind: Kind) -> int:
    """Size in bytes of a page of this kind."""
    return int(ffi.sizeof(f"penstock_{kind}_page"))


def page_bytes() -> int:
    """Size in bytes of all pages of one tenant."""
    return page_size("quota") + page_size("usage")


def usage_page_bytes() -> int:
    """Size in bytes of a usage page."""
    return page_size("usage")


def open_page(path: Path, kind: Kind, *, writable: bool) -> int:
    """A descriptor of a checked page, close-on-exec. Raises PageError."""
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
    """Checks magic, version and size with the shim's own code. Raises PageError."""
    code = lib.penstock_binding_page_check(fd, kind == "quota")
    if code != 0:
        what = text_of(lib.penstock_binding_error_text(code))
        advice = None
        if what in _ADVICE and "version" in what:
            advice = _ADVICE[what]
            what += _versions(fd)
        raise PageError(path, what, advice)


def _versions(fd: int) -> str:
    """The version of the page and the versions that this release reads, in words."""
    (found,) = struct.unpack_from("=I", os.pread(fd, 16, 0), 8)
    oldest, newest = int(lib.PENSTOCK_ABI_OLDEST), int(lib.PENSTOCK_ABI_VERSION)
    if oldest <= found <= newest:
        return f" (version {found}, but of another size)"
    before = " and the one before" if oldest < newest else ""
    return f" (version {found}; this release reads version {newest}{before})"


def text_of(pointer: CData) -> str:
    """A NUL-terminated C string or char array with unprintable characters replaced."""
    raw = ffi.string(pointer)
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


@contextlib.contextmanager
def mapped(fd: int, kind: Kind, *, writable: bool = True) -> Iterator[CData]:
    """The page as a C struct, mapped for the duration of the block."""
    view = Mapping(fd, kind, writable=writable)
    try:
        yield view.page
    finally:
        view.close()


class Mapping:
    """A page as a C struct in `page`, mapped until `close`."""

    def __init__(self, fd: int, kind: Kind, *, writable: bool = True) -> None:
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self._memory = mmap.mmap(fd, page_size(kind), access=access)
        self._buffer = ffi.from_buffer(self._memory, require_writable=writable)
        self.page: CData = ffi.cast(f"penstock_{kind}_page *", self._buffer)

    def close(self) -> None:
        """Unmaps; `page` must not be used any more."""
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
    """Creates a page file, which gets its name only when it is complete.

    All its storage is allocated now: a full file system is an error here, never a later SIGBUS in a
    program that writes to its page. (Without such a system call, glibc writes into each block.)

    Args:
        path: Path of the file; a missing directory is created (0700).
        kind: Kind of page.
        fill: Initialises the zeroed page.
        mode: Permission bits of the file, whatever the umask.

    Raises:
        PageError: the page exists already or cannot be written.
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
            # A page is never replaced while a process may have it mapped: link, not rename.
            os.link(spare, path)
        finally:
            os.close(fd)
            spare.unlink()
    except FileExistsError:
        raise PageError(path, "exists already", "open it, or choose another tenant name") from None
    except OSError as error:
        size = f"{page_size(kind) >> 10} KiB" if error.errno in _FULL else ""
        advice = (
            f"it takes {size}: free some space, or {_ELSEWHERE}"
            if size
            else f"check permissions, or {_ELSEWHERE}"
        )
        raise PageError(path, f"cannot be written ({error.strerror})", advice) from None
