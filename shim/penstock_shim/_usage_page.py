"""The usage page, in which a tenant's shims record the tenant's usage.

The page's content is not trusted. It is read by `pread`, because a truncated mapping would kill the
reader, and every field is checked against its bounds.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock_shim._limits import MAX_DEVICES, MAX_SLOTS, UNIT_BYTES
from penstock_shim._native import ffi, lib
from penstock_shim._page_file import (
    PageError,
    check_page,
    create_page,
    mapped,
    open_page,
    page_size,
    text_of,
)

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

    from penstock_shim._native import CData

_UNKNOWN_NAMESPACE: int = lib.PENSTOCK_MAX_PID_NAMESPACES
AskedKind = Literal["refused", "unknown", "absent", "forwarded"]
_ASKED_KINDS: dict[int, AskedKind] = {
    lib.PENSTOCK_ASKED_REFUSED: "refused",
    lib.PENSTOCK_ASKED_UNKNOWN: "unknown",
    lib.PENSTOCK_ASKED_ABSENT: "absent",
    lib.PENSTOCK_ASKED_FORWARDED: "forwarded",
}


_rooms = threading.local()
_ASKED_OFFSET: int = ffi.offsetof("penstock_usage_page", "asked")


@dataclass(frozen=True)
class DeviceUsage:
    """A tenant's usage of one device, summed over all its processes."""

    total_bytes: int
    peak_bytes: int
    """Highest value of `total_bytes` so far."""
    refusals: int
    """Number of requests that the ledger refused as out of memory."""
    refused_bytes: int
    """Size of the last refused request."""
    origin_ns: int
    """CLOCK_MONOTONIC time of the first launch, 0 before it."""
    spent_ns: int
    """Device time charged."""
    closed: bool
    launches: int
    waits: int
    waited_ns: int
    debts: int
    copied_bytes: int
    """Bytes moved by copy engines, which are metered but not gated."""
    copies: int
    host_functions: int
    """Number of host functions queued on streams, which are not gated."""


@dataclass(frozen=True)
class SlotUsage:
    """Memory and work in flight of one process, listed by device."""

    slot: int
    state: Literal["live", "reaping"]
    owner: int
    """Owner word, for `QuotaWriter.mark_dead`."""
    pid: int
    """Process ID in the process's own pid namespace."""
    pid_namespace: int | None
    """Inode of the process's pid namespace, None if unknown."""
    start_ticks: int
    """Low 28 bits of field 22 of /proc/<pid>/stat."""
    command: str
    claimed_ns: int
    """CLOCK_MONOTONIC time of the claim."""
    charged_bytes: tuple[int, ...]
    estimate_ns: tuple[int, ...]
    submitted: tuple[int, ...]
    done: tuple[int, ...]


@dataclass(frozen=True)
class UsageSnapshot:
    """The contents of a usage page at approximately one moment."""

    devices: tuple[DeviceUsage, ...]
    """One entry for each requested device; by default, for every device that a page can hold."""
    slots: tuple[SlotUsage, ...]
    """The slots in use."""
    asked_changes: int = 0
    """Counter that grows with each request for a function that the shim does not implement."""


@dataclass(frozen=True)
class AskedName:
    """A driver function that a program requested and that the shim does not implement."""

    name: str
    kind: AskedKind
    requests: int
    """Number of requests through cuGetProcAddress."""
    calls: int
    """Number of calls; at least one per process for a function that the driver lacks."""


@dataclass(frozen=True)
class Asked:
    """All driver functions that a tenant requested and that the shim does not implement."""

    names: tuple[AskedName, ...]
    overflow: int
    """Number of requests whose name did not fit into the table."""
    ever_used: bool = True
    """Whether any process has claimed a slot, which happens with its first context."""


class UsagePage:
    """An open usage page of a tenant.

    `snapshot` is safe for any user's page. `reap` maps the page, so it is safe only for the
    caller's own tenants: truncating a mapped file kills the process that has it mapped.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    @classmethod
    def create(cls, path: Path, *, mode: int = 0o600) -> Self:
        """Creates an empty usage page.

        Args:
            path: Path of the file. A missing directory is created (0700).
            mode: Permission bits, which must let the tenant write.

        Raises:
            PageError: the page already exists or cannot be written.
        """
        create_page(path, "usage", lib.penstock_usage_init, mode=mode)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Opens a page for reading and reaping. Raises `PageError`."""
        return cls(path, open_page(path, "usage", writable=True))

    def snapshot(self, devices: int = MAX_DEVICES) -> UsageSnapshot:
        """Reads the page for its first `devices` devices. Raises `PageError` if it is damaged."""
        return _snapshot(self._fd, self.path, devices)

    def fileno(self) -> int:
        """Returns the file descriptor, for native readers. `close` closes it."""
        return self._fd

    def asked(self) -> Asked:
        """Reads the requested functions that the shim does not implement. Raises `PageError`."""
        return _asked(self._fd, self.path)

    def reap(self, quota: Path | None = None) -> int:
        """Frees the slots of dead processes and releases their charges.

        Args:
            quota: The quota page, which marks dead owners. The default is the quota page in the
                same directory, if there is one.

        Returns:
            The number of freed slots.

        Raises:
            PageError: a page cannot be used.
        """
        check_page(self._fd, self.path, "usage")
        quota_path = quota or self.path.with_name("quota")
        if quota is None and not quota_path.exists():
            with mapped(self._fd, "usage") as usage:
                return int(lib.penstock_reap_all(usage, ffi.NULL))
        quota_fd = open_page(quota_path, "quota", writable=False)
        try:
            with (
                mapped(self._fd, "usage") as usage,
                mapped(quota_fd, "quota", writable=False) as page,
            ):
                return int(lib.penstock_reap_all(usage, page))
        finally:
            os.close(quota_fd)

    def close(self) -> None:
        """Closes the file without changing the page. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_usage(path: Path) -> UsageSnapshot:
    """Reads a usage page, which needs only read permission. Raises `PageError`."""
    fd = open_page(path, "usage", writable=False)
    try:
        return _snapshot(fd, path)
    finally:
        os.close(fd)


def read_asked(path: Path) -> Asked:
    """Reads a tenant's requested functions; read permission is enough. Raises `PageError`."""
    fd = open_page(path, "usage", writable=False)
    try:
        return _asked(fd, path)
    finally:
        os.close(fd)


def _asked(fd: int, path: Path) -> Asked:
    check_page(fd, path, "usage")
    page = ffi.new("penstock_usage_page *")
    _read_range(fd, page, 0, ffi.offsetof("penstock_usage_page", "pid_namespaces"), path)
    _read_range(fd, page, _ASKED_OFFSET, page_size("usage") - _ASKED_OFFSET, path)
    # An entry has no kind if its process was killed before it wrote the name.
    found = [
        AskedName(text_of(one.name), _ASKED_KINDS[one.kind], one.requests, one.calls)
        for one in page.asked
        if one.kind in _ASKED_KINDS
    ]
    return Asked(
        tuple(sorted(found, key=lambda one: one.name)), page.asked_overflow, page.slots_high > 0
    )


def _snapshot(fd: int, path: Path, devices: int = MAX_DEVICES) -> UsageSnapshot:
    check_page(fd, path, "usage")
    page = _scratch()
    gates = ffi.offsetof("penstock_usage_page", "gate")
    slots = ffi.offsetof("penstock_usage_page", "slots")
    _read_range(fd, page, 0, gates, path)
    for i in range(devices):
        start = gates + i * ffi.sizeof("penstock_gate_device")
        _read_range(fd, page, start, ffi.offsetof("penstock_gate_device", "ring"), path)
    high = min(page.slots_high, MAX_SLOTS)
    _read_range(fd, page, slots, high * ffi.sizeof("penstock_slot"), path)
    used = (_slot(page, i, devices) for i in range(high))
    return UsageSnapshot(
        devices=tuple(_device(page.ledger[i], page.gate[i]) for i in range(devices)),
        slots=tuple(slot for slot in used if slot is not None),
        asked_changes=page.asked_changes,
    )


def _scratch() -> CData:
    """Returns this thread's page buffer, of which only the ranges read last are valid."""
    if not hasattr(_rooms, "page"):
        _rooms.page = ffi.new("penstock_usage_page *")
    return _rooms.page


def _read_range(fd: int, page: CData, offset: int, length: int, path: Path) -> None:
    raw = os.pread(fd, length, offset)
    if len(raw) != length or offset + length > page_size("usage"):
        raise PageError(path, "is shorter than the page it should hold")
    ffi.memmove(ffi.cast("char *", page) + offset, raw, length)


def _device(ledger: CData, gate: CData) -> DeviceUsage:
    return DeviceUsage(
        total_bytes=_bytes(ledger.total),
        peak_bytes=ledger.peak_bytes,
        refusals=ledger.refusals,
        refused_bytes=ledger.refused_bytes,
        origin_ns=gate.origin_ns,
        spent_ns=gate.spent_ns,
        closed=bool(gate.closed),
        launches=gate.launches,
        waits=gate.waits,
        waited_ns=gate.waited_ns,
        debts=gate.debts,
        copied_bytes=gate.copied_bytes,
        copies=gate.copies,
        host_functions=gate.host_functions,
    )


def _bytes(word: int) -> int:
    return (word >> 28) * UNIT_BYTES


def _slot(page: CData, index: int, devices: int) -> SlotUsage | None:
    slot = page.slots[index]
    owner: int = slot.owner
    state = owner >> 62
    if state not in {lib.PENSTOCK_SLOT_LIVE, lib.PENSTOCK_SLOT_REAPING}:
        return None
    namespace = owner >> 54 & 0xFF
    inode = page.pid_namespaces[namespace] & 0xFFFFFFFF if namespace != _UNKNOWN_NAMESPACE else 0
    return SlotUsage(
        slot=index,
        state="live" if state == lib.PENSTOCK_SLOT_LIVE else "reaping",
        owner=owner,
        pid=owner >> 32 & 0x3FFFFF,
        pid_namespace=inode or None,
        start_ticks=owner & 0xFFFFFFF,
        command=text_of(slot.command),
        claimed_ns=slot.claimed_ns,
        charged_bytes=tuple(_bytes(slot.ledger[i].charged) for i in range(devices)),
        estimate_ns=tuple(slot.gate[i].estimate_ns for i in range(devices)),
        submitted=tuple(slot.gate[i].submitted for i in range(devices)),
        done=tuple(slot.gate[i].done for i in range(devices)),
    )
