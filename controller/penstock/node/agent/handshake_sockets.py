"""Handshake sockets of the tenants: learn the host pid of the process that holds each slot.

A process sends one message for each slot that it claims, and does not wait for a response. The
message itself is unverified. The kernel vouches for the sender, because only the tenant can reach
its socket, and SO_PEERCRED identifies the process. The reconcile loop accepts a bounded number of
connections per tenant and iteration, so that a tenant that floods its socket does not slow down
others.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.node.agent.listening_socket import listening_socket
from penstock.node.agent.peer import NoPeerError, Peer
from penstock.node.containers.container_folder import FOLDER as CONTAINER
from penstock.node.enforcement.process import Process
from penstock.node.tenants.handshake_file import Handshake, read_handshakes, write_handshakes
from penstock.node.tenants.tenant_events import record_event
from penstock_shim.handshake import MESSAGE_BYTES, SOCKET, Hello, parse
from penstock_shim.pages import MAX_SLOTS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.node.tenants.tenant import Tenant

BACKLOG = 128  # waiting connections; when it is full, a process runs without a handshake
MOST_PER_ITERATION = 256  # for all tenants together; each handshake takes about 50 us
MOST_PER_TENANT = 16
MOST_SILENT = 8  # connections per tenant that have not sent their message yet
SILENT_NS = 1_000_000_000  # a connection that stays silent longer is closed
SAVE_PERIOD_NS = 1_000_000_000
REFUSALS_PERIOD_NS = 60_000_000_000  # between recorded events about refused handshakes


@dataclass
class _Listener:
    """One tenant's socket, and the handshakes received on it."""

    tenant: Tenant
    listening: socket.socket
    path: Path
    contained: bool
    since_ticks: int
    known: dict[int, Handshake] = field(default_factory=dict)  # by pid
    processes: frozenset[Process] | None = None  # of `known`; None if out of date
    silent: deque[tuple[int, socket.socket]] = field(default_factory=deque)  # (accepted at, socket)
    unsaved: bool = False
    refused: int = 0
    refusal_recorded_ns: int | None = None

    def close(self) -> None:
        for _, connection in self.silent:
            connection.close()
        self.silent.clear()
        self.listening.close()


class Handshakes:
    """The agent's periodic task that accepts handshakes. Any thread may call `listen`, `forget`."""

    def __init__(self, on_visible: Callable[[int], None] = lambda _: None) -> None:
        """`on_visible` is called with the owner word of each slot whose process a scan can see."""
        self._on_visible = on_visible
        self._epoll = select.epoll()
        self._listeners: dict[str, _Listener] = {}
        self._by_descriptor: dict[int, _Listener] = {}
        self._guard = threading.RLock()
        self._saved_ns = 0

    def listen(self, tenant: Tenant, uid: int | None) -> None:
        """Listens for handshakes of `tenant`; a second call moves the socket if necessary.

        If the tenant's directory has a folder for containers, the socket is created in that folder.
        If the socket cannot be created, the tenant has no handshakes, and an event records the
        reason.

        Args:
            tenant: The tenant, whose directory holds the socket and the handshakes saved by an
                earlier agent.
            uid: The user whose processes may connect; None for the agent's own user.
        """
        folder = tenant.directory / CONTAINER
        contained = folder.is_dir()
        path = (folder if contained else tenant.directory) / SOCKET
        old = self._listeners.get(tenant.name)
        if old is not None and old.path == path and path.is_socket():
            return
        try:
            made = listening_socket(
                path,
                socket.SOCK_SEQPACKET,
                mode=0o666 if contained else 0o600,
                backlog=BACKLOG,
                uid=None if contained else uid,
            )
        except OSError as error:
            record_event(tenant.directory, "no-handshakes", reason=f"{path}: {error.strerror}")
            return
        listener = _Listener(tenant, made, path, contained, since_ticks=_now_ticks())
        if old is not None and old.path != path:
            with contextlib.suppress(OSError):
                old.path.unlink()
        before = read_handshakes(tenant.directory)
        living = [one for one in before if Peer.is_alive(one.pid, one.start_ticks)]
        listener.known = {one.pid: one for one in living}
        listener.unsaved = len(living) != len(before)
        with self._guard:
            self.forget(tenant.name)
            self._listeners[tenant.name] = listener
            self._by_descriptor[made.fileno()] = listener
            self._epoll.register(made, select.EPOLLIN)

    def forget(self, name: str) -> None:
        """Closes the tenant's socket, so that it receives no further handshakes."""
        with self._guard:
            listener = self._listeners.pop(name, None)
            if listener is not None:
                del self._by_descriptor[listener.listening.fileno()]
                with contextlib.suppress(OSError):
                    self._epoll.unregister(listener.listening)
                listener.close()

    def processes(self, name: str) -> frozenset[Process]:
        """The processes that have identified themselves as the tenant's, for enforcement."""
        listener = self._listeners.get(name)
        if listener is None:
            return frozenset()
        if listener.processes is None:
            known = list(listener.known.values())
            listener.processes = frozenset(Process(one.pid, one.start_ticks) for one in known)
        return listener.processes

    def listens_since_ticks(self, name: str) -> int | None:
        """When the socket opened, in the ticks of /proc/PID/stat; None if there is no socket."""
        listener = self._listeners.get(name)
        return listener.since_ticks if listener else None

    def __call__(self, now_ns: int) -> bool:
        """Accepts handshakes for one iteration, up to its budget."""
        with self._guard:
            budget = MOST_PER_ITERATION
            # The kernel moves a socket that is still ready to the end of its list, so every socket
            # has its turn.
            for descriptor, _ in self._epoll.poll(0, MOST_PER_ITERATION // MOST_PER_TENANT):
                listener = self._by_descriptor.get(descriptor)
                if listener is not None:
                    budget -= self._accept(listener, now_ns, min(budget, MOST_PER_TENANT))
            for listener in self._listeners.values():
                if listener.silent:
                    self._retry_silent(listener, now_ns)
            if now_ns - self._saved_ns >= SAVE_PERIOD_NS:
                self._saved_ns = now_ns
                self._prune_and_save()
        return True

    def close(self) -> None:
        """Closes all sockets. Their files remain until the next agent replaces them."""
        with self._guard:
            self._prune_and_save()
            for name in list(self._listeners):
                self.forget(name)
            self._epoll.close()

    def _accept(self, listener: _Listener, now_ns: int, most: int) -> int:
        for taken in range(most):
            try:
                connection, _ = listener.listening.accept()
            except OSError:  # no connection is waiting, or no descriptor is left to accept one
                return taken
            connection.setblocking(False)
            if not self._receive(listener, connection):
                listener.silent.append((now_ns, connection))
                if len(listener.silent) > MOST_SILENT:
                    listener.silent.popleft()[1].close()
        return most

    def _retry_silent(self, listener: _Listener, now_ns: int) -> None:
        """Reads again from connections whose message had not arrived when they were accepted."""
        for _ in range(len(listener.silent)):
            since_ns, connection = listener.silent.popleft()
            if self._receive(listener, connection):
                continue
            if now_ns - since_ns > SILENT_NS:
                connection.close()
            else:
                listener.silent.append((since_ns, connection))

    def _receive(self, listener: _Listener, connection: socket.socket) -> bool:
        """Reads the message and closes the connection; returns False if no message has arrived."""
        try:
            raw = connection.recv(MESSAGE_BYTES + 1)
        except BlockingIOError:
            return False
        except OSError:
            raw = b""
        try:
            if raw:
                self._record(listener, connection, raw)
        except ValueError as error:
            self._refuse(listener, str(error))
        except NoPeerError:
            pass  # the sender has ended
        finally:
            connection.close()
        return True

    def _record(self, listener: _Listener, connection: socket.socket, raw: bytes) -> None:
        hello = parse(raw)
        try:
            handshake = self._handshake(listener, connection, hello)
        except NoPeerError:  # a scan may have seen the process before it ended
            self._on_visible(hello.owner)
            raise
        self._on_visible(hello.owner)
        if handshake.pid not in listener.known and len(listener.known) >= MAX_SLOTS:
            self._prune(listener)
            if len(listener.known) >= MAX_SLOTS:
                raise ValueError("the tenant has more processes than slots")
        listener.known[handshake.pid] = handshake
        listener.processes = None
        listener.unsaved = True

    @staticmethod
    def _handshake(listener: _Listener, connection: socket.socket, hello: Hello) -> Handshake:
        """The verified handshake. Raises ValueError if false, `NoPeerError` if the peer ended."""
        with Peer.of(connection) as peer:
            peer.check_pid(hello.pid, hello.start_ticks)
            peer.check_place(listener.tenant, contained=listener.contained)
            return Handshake(
                pid=peer.pid,
                start_ticks=peer.start_ticks,
                inner_pid=hello.pid,
                slot=hello.slot,
                owner=hello.owner,
                library=hello.library,
                abi_version=hello.abi_version,
            )

    def _refuse(self, listener: _Listener, reason: str) -> None:
        listener.refused += 1
        now_ns = time.monotonic_ns()
        recorded_ns = listener.refusal_recorded_ns
        if recorded_ns is not None and now_ns - recorded_ns < REFUSALS_PERIOD_NS:
            return
        listener.refusal_recorded_ns = now_ns
        record_event(
            listener.tenant.directory, "handshake-refused", reason=reason, count=listener.refused
        )

    def _prune_and_save(self) -> None:
        """Removes ended processes, and saves the remaining handshakes for the next agent."""
        for listener in self._listeners.values():
            if listener.known:
                self._prune(listener)
            if listener.unsaved:
                with contextlib.suppress(OSError):  # the next iteration retries
                    write_handshakes(listener.tenant.directory, listener.known.values())
                    listener.unsaved = False

    @staticmethod
    def _prune(listener: _Listener) -> None:
        """Removes ended processes by pid alone; readers detect a reused pid by its start time."""
        gone = [pid for pid in listener.known if not _exists(pid)]
        for pid in gone:
            del listener.known[pid]
        if gone:
            listener.processes = None
            listener.unsaved = True


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _now_ticks() -> int:
    """The current time in clock ticks since boot, the unit of start times in /proc/PID/stat."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK") // 10**9
