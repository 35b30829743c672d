"""Peer of a local connection: the process that connected, as identified by the kernel."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.devices.host_pids import inner_pid
from penstock.devices.proc_files import namespace_of
from penstock.node.enforcement.process import UNKNOWN, Process, find, is_alive, read_stat
from penstock.node.tenants.mount_lookup import mounted_pages, page_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.node.tenants.tenant import Tenant

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_SO_PEERPIDFD = 77  # include/uapi/asm-generic/socket.h, since Linux 6.5


def credentials_of(connection: socket.socket) -> tuple[int, int]:
    """The pid and uid of the process that connected. The pid is 0 outside our pid namespace."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid


class NoPeerError(Exception):
    """The peer has ended, or the information that identified it is gone."""


@dataclass(frozen=True)
class Peer:
    """The process that called connect(). `of` holds it, so that its pid is not reused meanwhile."""

    pid: int
    start_ticks: int

    @classmethod
    @contextlib.contextmanager
    def of(cls, connection: socket.socket) -> Iterator[Peer]:
        """The peer, guaranteed to be still alive when the `with` block ends.

        Raises:
            ValueError: the peer's pid namespace is neither ours nor nested in ours.
            NoPeerError: the peer has ended, or its main thread has ended and nothing identifies it.
        """
        pid, uid = credentials_of(connection)
        if pid <= 0:
            raise ValueError("its process is in a pid namespace outside the agent's")
        descriptor = _pidfd_of(connection)
        try:
            stat = read_stat(pid)
            if stat is None or stat.has_ended or stat.start_ticks == UNKNOWN:
                raise NoPeerError
            # A connection passed to another process may outlive the process that made it, and
            # before Linux 6.5 there is no pidfd, so the pid may have been reused. Accept only a
            # process of the same user.
            if descriptor is None and _uid_of(pid) not in {uid, None}:
                raise NoPeerError
            try:
                yield cls(pid, stat.start_ticks)
            except ValueError as error:
                # The peer's mounts are read through its main thread, which may end before the other
                # threads; on a busy machine these may then still wait for a processor. Report that
                # the peer ended, not that it lied.
                now = read_stat(pid)
                if now is None or now.leader_has_ended or now.start_ticks != stat.start_ticks:
                    raise NoPeerError from error
                raise
            if _has_ended(descriptor, pid, stat.start_ticks):
                raise NoPeerError
        finally:
            if descriptor is not None:
                os.close(descriptor)

    @staticmethod
    def is_alive(pid: int, start_ticks: int) -> bool:
        """Whether this process, and not another with the same pid, is alive."""
        return is_alive(Process(pid, start_ticks))

    def check_pid(self, inner: int, start_ticks: int) -> None:
        """Raises ValueError if the pid or start time that the peer sent is false; 0 is unknown."""
        if inner != inner_pid(self.pid):
            raise ValueError(f"pid {self.pid} claims to have pid {inner}")
        if start_ticks not in {0, self.start_ticks} and _time_namespace(
            self.pid
        ) == _time_namespace("self"):
            raise ValueError(f"pid {self.pid} claims to have started at another time")

    def check_place(self, tenant: Tenant, *, contained: bool) -> None:
        """Checks that the pages mounted in the peer are those of `tenant`.

        `contained`: whether the tenant's pages are mounted only in its containers.

        Raises:
            ValueError: the peer has the pages of another tenant, or none.
            NoPeerError: the peer's mounts cannot be read now.
        """
        page = page_of(tenant.usage_page)
        # A user's own mount proves nothing, but the user may be running a rootless container.
        mounters = {os.geteuid(), page.uid} if contained and page else {os.geteuid()}
        try:
            mounted = mounted_pages(self.pid, mounters.__contains__)
        except TimeoutError as error:
            raise NoPeerError from error
        if mounted is None and not contained:
            return
        if mounted is None or page is None or not mounted.tells_of(page):
            raise ValueError(f"pid {self.pid} is not in a container of the tenant")


class Watched:
    """A process held by its pidfd, which reports its end even if the pid is reused.

    The descriptor is closed when this object is freed.
    """

    def __init__(self, process: Process, descriptor: int) -> None:
        self.process = process
        self._descriptor = descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)

    @classmethod
    def peer_of(cls, connection: socket.socket) -> Watched | None:
        """The process that connected, checked because a connection may outlive its maker.

        Returns None if the process has ended, is outside our pid namespace, or its start time is
        unreadable.
        """
        pid, uid = credentials_of(connection)
        try:
            descriptor = _pidfd_of(connection)
            by_pid = descriptor is None
            if descriptor is None:
                descriptor = os.pidfd_open(pid)
        except (NoPeerError, OSError, ValueError):
            return None
        process = find(pid)
        found = cls(process or Process(pid, UNKNOWN), descriptor)
        if process is None or found.has_ended():
            return None
        # Before Linux 6.5 the pid may have been reused: accept only a process of the same user.
        return None if by_pid and _uid_of(pid) != uid else found

    @classmethod
    def again(cls, process: Process) -> Watched | None:
        """The process that an earlier agent watched; None if it has ended or cannot be watched."""
        try:
            found = cls(process, os.pidfd_open(process.pid))
        except (OSError, OverflowError, ValueError):
            return None
        return found if process.start_ticks != UNKNOWN and is_alive(process) else None

    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return _is_readable(self._descriptor)


def _pidfd_of(connection: socket.socket) -> int | None:
    """A pidfd of the process that connected, None if the kernel does not offer one."""
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4)
    except OSError as error:
        if error.errno in {errno.ENOPROTOOPT, errno.EOPNOTSUPP}:
            return None
        raise NoPeerError from error
    return int(struct.unpack("i", raw)[0])


def _has_ended(pidfd: int | None, pid: int, start_ticks: int) -> bool:
    """Whether the process has ended or is about to; a pidfd becomes readable only at the end."""
    if pidfd is not None and _is_readable(pidfd):
        return True
    return not Peer.is_alive(pid, start_ticks)


def _is_readable(pidfd: int) -> bool:
    poll = select.poll()  # select() does not accept descriptors above 1023
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _uid_of(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116
    except OSError:
        return None


def _time_namespace(pid: int | str) -> int:
    try:
        return namespace_of(pid, "time")
    except OSError:
        return 0
