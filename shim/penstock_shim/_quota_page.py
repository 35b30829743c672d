"""The quota page, in which a supervisor writes a tenant's limits."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock_shim import _limits
from penstock_shim._native import ffi, lib
from penstock_shim._page_file import Mapping, PageError, create_page, open_page, page_size, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from typing_extensions import Self

    from penstock_shim._limits import Limits
    from penstock_shim._native import CData

_LOCK_WAIT_S = 5.0
_NAME_BYTES = 64
_PATH_BYTES = 256


@dataclass(frozen=True)
class Quota:
    """The contents of a quota page at one moment."""

    tenant: str
    limits: Limits
    driver_path: str
    """Path of the driver's libcuda; if empty, the shim searches for it."""
    nvml_path: str
    heartbeat_ns: int
    """CLOCK_MONOTONIC time of the writer's last heartbeat, 0 before the first."""


def read_quota(path: Path) -> Quota:
    """Reads a quota page without mapping it. Raises `PageError`."""
    fd = open_page(path, "quota", writable=False)
    try:
        page = ffi.new("penstock_quota_page *")
        # The copy in force is rewritten only by the change after the next one, so it is enough to
        # read the page again if the index of that copy changed during the read.
        for _ in range(16):
            _pread_into(fd, page, path)
            before = page.current & 1
            generation = page.copies[before].generation
            _pread_into(fd, page, path)
            if (page.current & 1, page.copies[before].generation) == (before, generation):
                break
        return _decode(page, path)
    finally:
        os.close(fd)


def _check_devices(before: Limits, after: Limits) -> None:
    """Refuses other devices for a tenant that may be using its devices. Raises ValueError."""
    if [d.uuid.lower() for d in after.devices] == [d.uuid.lower() for d in before.devices]:
        return
    if len(after.devices) != len(before.devices):
        raise ValueError("a tenant's number of devices does not change; start another tenant")
    if not (before.released and before.suspended):
        raise ValueError(
            "a tenant's devices do not change while it runs; release its device memory first, "
            "or start another tenant"
        )


def _pread_into(fd: int, page: CData, path: Path) -> None:
    raw = os.pread(fd, page_size("quota"), 0)
    if len(raw) != page_size("quota"):
        raise PageError(path, "is shorter than the page it should hold")
    ffi.memmove(page, raw, len(raw))


def _decode(page: CData, path: Path) -> Quota:
    try:
        limits = _limits.from_struct(page.copies[page.current & 1])
    except ValueError as error:
        raise PageError(path, f"holds a field that is out of bounds ({error})") from None
    return Quota(
        tenant=text_of(page.tenant),
        limits=limits,
        driver_path=text_of(page.driver_path),
        nvml_path=text_of(page.nvml_path),
        heartbeat_ns=page.heartbeat_ns,
    )


class QuotaWriter:
    """Writer of a quota page. A page may have several writers, in any process.

    A change is atomic: it fills the spare copy, then makes that copy current, then wakes waiting
    launches. `QuotaWriter.create` makes a page, and `QuotaWriter.open` opens an existing one. Any
    thread may write to the page or close it. Writing after `close` raises `PageError`.
    """

    def __init__(self, path: Path, fd: int, lock_fd: int) -> None:
        self.path = path
        self._fd = fd
        self._lock_fd = lock_fd
        self._using = threading.Lock()  # while it is held, the page and both files stay open
        self._mapping = Mapping(fd, "quota")

    @classmethod
    def create(
        cls,
        path: Path,
        limits: Limits,
        *,
        tenant: str,
        driver_path: str = "",
        nvml_path: str = "",
    ) -> Self:
        """Creates a page (0644, in a directory of 0700 if that is missing) with `limits` in force.

        Raises:
            ValueError: a name or path does not fit its field.
            PageError: the page already exists or cannot be written.
        """
        name = _field("tenant", tenant, _NAME_BYTES)
        driver = _field("driver_path", driver_path, _PATH_BYTES)
        nvml = _field("nvml_path", nvml_path, _PATH_BYTES)
        struct = _limits.to_struct(limits)
        create_page(
            path,
            "quota",
            lambda page: lib.penstock_quota_init(page, struct, name, driver, nvml),
            mode=0o644,
        )
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Opens an existing page, for instance after a restart. Raises `PageError`."""
        fd = open_page(path, "quota", writable=True)
        lock_path = path.with_name(path.name + ".lock")
        try:
            # The lock is a separate file, because any process that may read the page could lock it.
            lock_fd = os.open(
                lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
        except OSError as error:
            os.close(fd)
            raise PageError(lock_path, f"cannot be opened ({error.strerror})") from None
        return cls(path, fd, lock_fd)

    @property
    def limits(self) -> Limits:
        """The limits in force. Raises `PageError` if they have been corrupted."""
        return self.read().limits

    def read(self) -> Quota:
        """Reads the page as it is now. Raises `PageError`."""
        return read_quota(self.path)

    def update(self, limits: Limits) -> int:
        """Puts `limits` in force, wakes waiting launches, and returns the new generation.

        Raises:
            ValueError: the devices differ from the page's devices, or are in another order, and
                the tenant's device memory is not released.
            PageError: the page was closed, or another writer held the lock for over 5 seconds.
        """
        return self.change(lambda _: limits)

    def change(self, edit: Callable[[Limits], Limits]) -> int:
        """Atomically replaces the limits by the result of `edit`. Raises the errors of `update`."""
        with self._locked() as page:
            try:
                before = _limits.from_struct(page.copies[page.current & 1])
            except ValueError as error:
                raise PageError(
                    self.path, f"holds a field that is out of bounds ({error})"
                ) from None
            after = edit(before)
            _check_devices(before, after)
            return int(lib.penstock_quota_publish(page, _limits.to_struct(after)))

    def heartbeat(self) -> int:
        """Writes a heartbeat and returns its CLOCK_MONOTONIC time in ns. Raises `PageError`."""
        with self._using:
            return int(lib.penstock_quota_heartbeat(self._page()))

    def words(self) -> CData:
        """Returns the page as a C struct, or NULL after `close`, for native heartbeats."""
        page = self._mapping.page
        return ffi.NULL if page is None else page

    def mark_dead(self, slot: int, owner: int) -> None:
        """Marks the process with owner word `owner` in `slot` as dead; 0 clears the mark.

        Raises:
            ValueError: there is no such slot.
            PageError: the page was closed.
        """
        if not 0 <= slot < _limits.MAX_SLOTS:
            raise ValueError(f"invalid slot {slot}: expected 0 to {_limits.MAX_SLOTS - 1}")
        with self._using:
            lib.penstock_quota_mark_dead(self._page(), slot, owner)

    def close(self) -> None:
        """Closes the page after any write in progress; the file stays. May be called twice."""
        with self._using:
            if self._fd >= 0:
                self._mapping.close()
                os.close(self._fd)
                os.close(self._lock_fd)
                self._fd = self._lock_fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _page(self) -> CData:
        """Returns the mapped page. The caller holds `_using`."""
        if self._mapping.page is None:
            raise PageError(self.path, "was closed by its writer", "open it anew")
        return self._mapping.page

    @contextlib.contextmanager
    def _locked(self) -> Iterator[CData]:
        """Locks the page against other writers for the duration of the `with` block."""
        with self._using:
            page = self._page()
            deadline = time.monotonic() + _LOCK_WAIT_S
            while True:
                try:
                    fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise PageError(
                            self.path,
                            f"has been locked by another writer for {_LOCK_WAIT_S:.0f} s",
                            "find it with `fuser` on the file beside it that ends in .lock",
                        ) from None
                    time.sleep(0.002)
            try:
                yield page
            finally:
                fcntl.flock(self._lock_fd, fcntl.LOCK_UN)


def _field(name: str, value: str, size: int) -> bytes:
    raw = os.fsencode(value)  # paths are bytes
    if len(raw) >= size or b"\0" in raw:
        raise ValueError(f"invalid {name} {value!r}: at most {size - 1} bytes, without NUL")
    return raw
