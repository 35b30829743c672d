"""Peer sockets: the agent's local entry points, which identify the calling process.

gRPC does not reveal which process is behind a unix socket. So this module accepts the connections,
identifies each peer by SO_PEERCRED, and forwards the bytes to gRPC's own socket from a unique
address, which gRPC passes to the service. The inner socket lies in a directory that only the
agent's user may enter, so nobody else can connect to it with an address of their choice.

The kernel keeps one accept queue per socket, and a client that connects faster than any program can
accept fills the queue and locks out all other clients. So administrators have a socket of their
own.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from penstock.node.agent import Principal
from penstock.node.agent.peer import Watched, credentials_of
from penstock.node.rpc.listener import Listening

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.node.agent.person import People

_CHUNK_BYTES = 1 << 16
MOST_CONNECTIONS = 1024
MOST_OF_A_USER = 32  # per person, with any of the person's uids
LOOKUPS_AT_ONCE = 4  # look-ups of callers' accounts, perhaps in a directory service
MOST_UNKNOWN = 512  # connections that wait for a look-up
MOST_OF_A_UID = 2 * MOST_OF_A_USER  # including waiting connections; further ones are closed at once
KEPT_FOR_ADMINS = 256
WAITS_FOR_S = 5.0  # how long to wait for the person's other connections to end
SPEAKS_WITHIN_S = 5.0  # a connection silent for this long at the start is closed
READS_WITHIN_S = 60.0  # a connection whose client does not read for this long is closed
CLOSES_WITHIN_S = 2.0
_PREFIX = "unix-abstract:"


class PeerSocket:
    """Accepts local connections, and connects each to the server at `inside`."""

    def __init__(self, outside: Path, for_admins: Path, inside: Path, people: People) -> None:
        """`outside`: the users' socket. `for_admins`: the socket that only administrators reach."""
        self._people = people
        self._lookups = ThreadPoolExecutor(LOOKUPS_AT_ONCE, "callers")
        self._unknown = 0  # connections whose caller is being looked up
        self._outside = outside
        self._for_admins = for_admins
        self._inside = inside
        self._callers: dict[str, Principal] = {}  # by the unique address of the connection
        self._of_uid: Counter[int] = Counter()  # all accepted connections
        self._connections: Counter[int | str] = Counter()  # admitted connections, by person
        self._waiting: Counter[int | str] = Counter()
        self._listening: list[Listening] = []
        self._tasks: set[asyncio.Task[None]] = set()  # of all accepted connections
        self._served = 0

    async def open(self, mode: int) -> None:
        """Starts accepting. `mode`: of the users' socket. Raises OSError if that fails."""
        for path, who in ((self._for_admins, 0o600), (self._outside, mode)):
            self._listening.append(Listening(path, who, self._accept))
            self._listening[-1].open()

    def caller(self, peer: str) -> Principal | None:
        """The principal with gRPC's peer address `peer`, None if no connection of ours has it."""
        return self._callers.get(peer.removeprefix(_PREFIX)) if peer.startswith(_PREFIX) else None

    async def close(self) -> None:
        """Closes all connections and removes the sockets."""
        for one in self._listening:
            one.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSES_WITHIN_S)
        self._lookups.shutdown(wait=False, cancel_futures=True)

    def _accept(self, accepted: socket.socket) -> None:
        """Starts a task for each connection; closes it at once if its uid has far too many."""
        pid, uid = credentials_of(accepted)
        if self._of_uid[uid] >= MOST_OF_A_UID and not Principal.is_admins(uid):
            accepted.close()
            return
        self._of_uid[uid] += 1
        task = asyncio.get_running_loop().create_task(self._join(accepted, uid, pid))
        self._tasks.add(task)

        def gone(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            accepted.close()
            self._of_uid[uid] -= 1
            if not self._of_uid[uid]:
                del self._of_uid[uid]

        task.add_done_callback(gone)

    async def _join(self, accepted: socket.socket, uid: int, pid: int) -> None:
        with contextlib.suppress(OSError, asyncio.TimeoutError, asyncio.CancelledError):
            caller = await self._caller_at(accepted, uid, pid)
            if caller is None or not await self._enters(caller.person, is_admin=caller.is_admin):
                return
            self._served += 1
            self._connections[caller.person] += 1
            try:
                reader, writer = await asyncio.open_unix_connection(sock=accepted)
                try:
                    await self._serve(caller, reader, writer)
                finally:
                    await _close(writer)
            finally:
                self._served -= 1
                self._connections[caller.person] -= 1
                if not self._connections[caller.person]:
                    del self._connections[caller.person]

    async def _caller_at(self, accepted: socket.socket, uid: int, pid: int) -> Principal | None:
        """The peer's principal, looked up in a thread; None if too many look-ups are waiting.

        An administrator needs no look-up and does not wait.
        """
        process = Watched.peer_of(accepted)
        if Principal.is_admins(uid):
            return Principal.local(uid, pid, self._people, process)
        if self._unknown >= MOST_UNKNOWN:
            return None
        self._unknown += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(
                self._lookups, Principal.local, uid, pid, self._people, process
            )
        finally:
            self._unknown -= 1

    async def _enters(self, user: int | str, *, is_admin: bool) -> bool:
        """Whether to admit a connection, after waiting for the user's other ones if necessary."""
        deadline = time.monotonic() + WAITS_FOR_S
        if self._waiting[user] >= MOST_OF_A_USER:
            return False
        self._waiting[user] += 1
        try:
            while not self._lets_in(user, is_admin=is_admin):
                if time.monotonic() > deadline:
                    return False
                await asyncio.sleep(0.05)
        finally:
            self._waiting[user] -= 1
            if not self._waiting[user]:
                del self._waiting[user]
        return True

    def _lets_in(self, user: int | str, *, is_admin: bool) -> bool:
        """Checks the limits on connections, per user and in total less a reserve for admins."""
        if is_admin:
            return self._served < MOST_CONNECTIONS
        return (
            self._connections[user] < MOST_OF_A_USER
            and self._served < MOST_CONNECTIONS - KEPT_FOR_ADMINS
        )

    async def _serve(
        self, caller: Principal, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Forwards a connection's bytes in both directions until either side closes it."""
        first = await asyncio.wait_for(reader.read(_CHUNK_BYTES), SPEAKS_WITHIN_S)
        if not first:
            return  # a probe that only checks whether the agent listens
        address = f"penstock-{secrets.token_hex(16)}"
        self._callers[address] = caller
        to_server: asyncio.StreamWriter | None = None
        try:
            from_server, to_server = await self._connect(address)
            to_server.write(first)
            pumps = {
                asyncio.ensure_future(_pump(reader, to_server)),
                asyncio.ensure_future(_pump(from_server, writer)),
            }
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            self._callers.pop(address, None)
            if to_server is not None:
                await _close(to_server)

    async def _connect(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        inner = socket.socket(socket.AF_UNIX)
        try:
            inner.setblocking(False)
            inner.bind(f"\0{address}")
            await asyncio.get_running_loop().sock_connect(inner, str(self._inside))
            return await asyncio.open_unix_connection(sock=inner)
        except BaseException:
            inner.close()
            raise


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        writer.write(data)
        await asyncio.wait_for(writer.drain(), READS_WITHIN_S)


async def _close(writer: asyncio.StreamWriter) -> None:
    """Closes the connection after flushing, or aborts it if the other side does not read."""
    writer.close()
    try:
        await asyncio.wait_for(writer.wait_closed(), CLOSES_WITHIN_S)
    except (OSError, asyncio.TimeoutError, asyncio.CancelledError):
        writer.transport.abort()
