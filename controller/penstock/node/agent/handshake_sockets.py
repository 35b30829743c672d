"""Handshake sockets of the tenants: which process, by host pid, holds which slot.

A process sends one message for each slot that it claims, and continues whether or not anybody
listens. The message is an unverified claim; the kernel vouches for the sender: only the tenant can
reach its socket, and SO_PEERCRED names the process. The reconcile loop accepts a bounded number of
connections per tenant and iteration, so a tenant that floods its socket costs co-tenants nothing.
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
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from penstock.node.tenants.tenant import Tenant

BACKLOG = 128  # waiting connections; a process beyond them continues without a handshake
MOST_IN_A_ROUND = 256  # per iteration, all tenants together; each costs some 50 us
MOST_OF_A_TENANT = 16
MOST_SILENT = 8  # connections of a tenant without a message yet
SILENT_NS = 1_000_000_000  # after which such a connection is closed
HOUSEKEEPING_NS = 1_000_000_000
REFUSALS_PERIOD_NS = 60_000_000_000  # at most one event of refused handshakes in this time


@dataclass
class _Listener:
    """One tenant's socket, and the handshakes that it received."""

    tenant: Tenant
    listening: socket.socket
    path: Path
    contained: bool
    since_ticks: int
    known: dict[int, Handshake] = field(default_factory=dict)  # by pid
    processes: frozenset[Process] | None = None  # the same; None: to be rebuilt
    silent: deque[tuple[int, socket.socket]] = field(default_factory=deque)  # (since, socket)
    unsaved: bool = False
    refused: int = 0
    refused_told_ns: int | None = None

    def close(self) -> None:
        for _, connection in self.silent:
            connection.close()
        self.silent.clear()
        self.listening.close()


class Handshakes:
    """A periodic task of the agent. `listen` and `forget` may be called from any thread."""

    def __init__(self, met: Callable[[int], None] = lambda _: None) -> None:
        """`met` is called with the owner word of each slot whose process scans can see."""
        self._met = met
        self._epoll = select.epoll()
        self._listeners: dict[str, _Listener] = {}
        self._by_descriptor: dict[int, _Listener] = {}
        self._guard = threading.RLock()
        self._kept_house_ns = 0
        self.taken = 0  # connections, in total
        self.refused = 0  # of these

    def listen(self, tenant: Tenant, uid: int | None) -> None:
        """Listens for handshakes of `tenant`; a second call moves the socket where needed.

        In a directory with a folder for containers the socket lies in that folder. Where the socket
        cannot be created, an event records that and the tenant has no handshakes.

        Args:
            tenant: Its directory holds the socket, and the handshakes saved by an earlier agent.
            uid: The user whose processes may connect; None: the agent's own user.
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
        """Closes the tenant's socket: no process can shake hands as that tenant any more."""
        with self._guard:
            listener = self._listeners.pop(name, None)
            if listener is not None:
                del self._by_descriptor[listener.listening.fileno()]
                with contextlib.suppress(OSError):
                    self._epoll.unregister(listener.listening)
                listener.close()

    def of(self, name: str) -> Mapping[int, Handshake]:
        """The handshakes of the tenant `name`, by pid; some processes may have ended."""
        listener = self._listeners.get(name)
        return dict(listener.known) if listener else {}

    def processes(self, name: str) -> frozenset[Process]:
        """The processes of these handshakes, for enforcement."""
        listener = self._listeners.get(name)
        if listener is None:
            return frozenset()
        if listener.processes is None:
            known = list(listener.known.values())
            listener.processes = frozenset(Process(one.pid, one.start_ticks) for one in known)
        return listener.processes

    def listens_since_ticks(self, name: str) -> int | None:
        """Processes started after this (as in /proc/PID/stat) could shake hands; None: none."""
        listener = self._listeners.get(name)
        return listener.since_ticks if listener else None

    def __call__(self, now_ns: int) -> bool:
        """One iteration: accepts handshakes within a budget."""
        with self._guard:
            budget = MOST_IN_A_ROUND
            # The kernel moves a socket that is still ready to the end of its list: all get served.
            for descriptor, _ in self._epoll.poll(0, MOST_IN_A_ROUND // MOST_OF_A_TENANT):
                listener = self._by_descriptor.get(descriptor)
                if listener is not None:
                    budget -= self._accept(listener, now_ns, min(budget, MOST_OF_A_TENANT))
            for listener in self._listeners.values():
                if listener.silent:
                    self._ask_again(listener, now_ns)
            if now_ns - self._kept_house_ns >= HOUSEKEEPING_NS:
                self._kept_house_ns = now_ns
                self._keep_house()
        return True

    def close(self) -> None:
        """Closes all sockets. Their files stay: the next agent replaces them."""
        with self._guard:
            self._keep_house()
            for name in list(self._listeners):
                self.forget(name)
            self._epoll.close()

    def _accept(self, listener: _Listener, now_ns: int, most: int) -> int:
        for taken in range(most):
            try:
                connection, _ = listener.listening.accept()
            except OSError:  # none is waiting; or no descriptor is left, and they keep waiting
                return taken
            self.taken += 1
            connection.setblocking(False)
            if not self._take(listener, connection):
                listener.silent.append((now_ns, connection))
                if len(listener.silent) > MOST_SILENT:
                    listener.silent.popleft()[1].close()
        return most

    def _ask_again(self, listener: _Listener, now_ns: int) -> None:
        """Retries connections whose message had not arrived when they were accepted."""
        for _ in range(len(listener.silent)):
            since_ns, connection = listener.silent.popleft()
            if self._take(listener, connection):
                continue
            if now_ns - since_ns > SILENT_NS:
                connection.close()
            else:
                listener.silent.append((since_ns, connection))

    def _take(self, listener: _Listener, connection: socket.socket) -> bool:
        """Reads the message and closes the connection. False: there is no message yet."""
        try:
            raw = connection.recv(MESSAGE_BYTES + 1)
        except BlockingIOError:
            return False
        except OSError:
            raw = b""
        try:
            if raw:
                self._know(listener, connection, raw)
        except ValueError as error:
            self._refuse(listener, str(error))
        except NoPeerError:
            pass  # it has ended
        finally:
            connection.close()
        return True

    def _know(self, listener: _Listener, connection: socket.socket, raw: bytes) -> None:
        hello = parse(raw)
        try:
            handshake = self._handshake(listener, connection, hello)
        except NoPeerError:  # scans may have seen it all the same
            self._met(hello.owner)
            raise
        self._met(hello.owner)
        if handshake.pid not in listener.known and len(listener.known) >= MAX_SLOTS:
            self._prune(listener)
            if len(listener.known) >= MAX_SLOTS:
                raise ValueError("more processes than a tenant has slots")
        listener.known[handshake.pid] = handshake
        listener.processes = None
        listener.unsaved = True

    @staticmethod
    def _handshake(listener: _Listener, connection: socket.socket, hello: Hello) -> Handshake:
        """Raises ValueError: its message is false; NoPeerError: it has ended."""
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
        self.refused += 1
        listener.refused += 1
        now_ns = time.monotonic_ns()
        told_ns = listener.refused_told_ns
        if told_ns is not None and now_ns - told_ns < REFUSALS_PERIOD_NS:
            return
        listener.refused_told_ns = now_ns
        record_event(
            listener.tenant.directory, "handshake-refused", reason=reason, count=listener.refused
        )

    def _keep_house(self) -> None:
        """Forgets ended processes, and saves the rest for the next agent."""
        for listener in self._listeners.values():
            if listener.known:
                self._prune(listener)
            if listener.unsaved:
                with contextlib.suppress(OSError):  # retried
                    write_handshakes(listener.tenant.directory, listener.known.values())
                    listener.unsaved = False

    @staticmethod
    def _prune(listener: _Listener) -> None:
        """Checks the pid alone; readers notice a reused pid by its start time."""
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
    """The current time in clock ticks since boot, as /proc/PID/stat counts start times."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK") // 10**9
