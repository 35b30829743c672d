"""The local socket: tells who calls.

gRPC does not say which process is behind a unix socket. So connections are accepted here, where the
kernel names their peer (SO_PEERCRED), and joined to gRPC's own socket from an address that no other
connection has; gRPC hands that address to the service. Its socket lies in a directory that only the
agent's user may enter: nobody else can come by with an address of their choice.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import struct
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from penstock.agent import Caller
from penstock.agent.peer import take_no_files

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.agent.person import People

_CHUNK_BYTES = 1 << 16
MOST_CONNECTIONS = 1024
MOST_OF_A_USER = 32  # a person, whatever uids they have
LOOKUPS_AT_ONCE = 4  # of callers' accounts, which may be told by a directory service
MOST_UNKNOWN = 512  # connections that wait for that
BACKLOG = 4096  # who finds it full is refused by the kernel, whoever it is
KEPT_FOR_ADMINS = 256
WAITS_FOR_S = 5.0  # for one's other connections to end
SPEAKS_WITHIN_S = 5.0  # whoever has nothing to say
READS_WITHIN_S = 60.0  # or does not listen has no connection
CLOSES_WITHIN_S = 2.0
LOOK_S = 1.0
_PREFIX = "unix-abstract:"


class Door:
    """Accepts local connections at `outside` and joins them to the server at `inside`."""

    def __init__(self, outside: Path, inside: Path, people: People) -> None:
        self._people = people
        self._lookups = ThreadPoolExecutor(LOOKUPS_AT_ONCE, "callers")
        self._unknown = 0  # connections whose caller is being looked up
        self._outside = outside
        self._inside = inside
        self._callers: dict[str, Caller] = {}  # by address
        self._connections: Counter[int | str] = Counter()  # by person
        self._waiting: Counter[int | str] = Counter()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._mode = 0o600
        self._inode = 0  # of the socket as it was bound last
        self._keeper: asyncio.Task[None] | None = None

    async def open(self, mode: int) -> None:
        """Begins to accept; `mode`: who may connect. A socket that a killed agent left goes."""
        self._mode = mode
        await self._listen()
        self._keeper = asyncio.create_task(self._keep())

    async def _listen(self) -> None:
        aside = self._outside.with_name(f".{self._outside.name}.{os.getpid()}")
        aside.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        take_no_files(listener)
        listener.bind(str(aside))
        aside.chmod(self._mode)
        self._inode = aside.stat().st_ino
        aside.replace(self._outside)  # whoever connects finds it whole
        listener.listen(BACKLOG)
        if self._server is not None:
            self._server.close()  # connections there are go on
        self._server = await asyncio.start_unix_server(self._join, sock=listener, backlog=BACKLOG)

    async def _keep(self) -> None:
        """Makes the socket again when somebody took it away."""
        while True:
            await asyncio.sleep(LOOK_S)
            with contextlib.suppress(OSError):  # no room for it, say: the next look tries again
                if not self._is_there():
                    await self._listen()

    def _is_there(self) -> bool:
        try:
            return self._outside.stat().st_ino == self._inode
        except FileNotFoundError:
            return False

    def caller(self, peer: str) -> Caller | None:
        """Whose connection gRPC means by `peer`; None: none of ours."""
        return self._callers.get(peer.removeprefix(_PREFIX)) if peer.startswith(_PREFIX) else None

    async def close(self) -> None:
        """Ends all connections and removes the socket."""
        if self._keeper is not None:
            self._keeper.cancel()
        if self._server is not None:
            self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSES_WITHIN_S)
        self._outside.unlink(missing_ok=True)
        self._lookups.shutdown(wait=False, cancel_futures=True)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        try:
            caller = await self._caller_at(writer.get_extra_info("socket"))
            if task is None or caller is None:
                return
            user = caller.person
            if not await self._enters(user, is_admin=caller.is_admin):
                return
            self._tasks.add(task)
            self._connections[user] += 1
            try:
                await self._serve(caller, reader, writer)
            finally:
                self._tasks.discard(task)
                self._connections[user] -= 1
                if not self._connections[user]:
                    del self._connections[user]
        except (OSError, asyncio.TimeoutError, asyncio.CancelledError):
            pass
        finally:
            await _close(writer)

    async def _caller_at(self, accepted: socket.socket) -> Caller | None:
        """Who is at the other end, looked up beside the loop; None: too many wait for that.

        Administrators are not looked up there, and wait for nobody.
        """
        raw = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, uid, _ = struct.unpack("3i", raw)
        if Caller.is_admins(uid):
            return Caller.local(uid, pid, self._people)
        if self._unknown >= MOST_UNKNOWN:
            return None
        self._unknown += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._lookups, Caller.local, uid, pid, self._people)
        finally:
            self._unknown -= 1

    async def _enters(self, user: int | str, *, is_admin: bool) -> bool:
        """Whether it may come in, if need be after some others of that user have gone."""
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
        """Each user has some connections; what all together leave is the administrators'."""
        if is_admin:
            return len(self._tasks) < MOST_CONNECTIONS
        return (
            self._connections[user] < MOST_OF_A_USER
            and len(self._tasks) < MOST_CONNECTIONS - KEPT_FOR_ADMINS
        )

    async def _serve(
        self, caller: Caller, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Hands a connection's bytes on, both ways, until either side ends it."""
        first = await asyncio.wait_for(reader.read(_CHUNK_BYTES), SPEAKS_WITHIN_S)
        if not first:
            return  # it only wanted to know whether somebody listens
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
    """What was written goes out first, unless nobody takes it."""
    writer.close()
    try:
        await asyncio.wait_for(writer.wait_closed(), CLOSES_WITHIN_S)
    except (OSError, asyncio.TimeoutError, asyncio.CancelledError):
        writer.transport.abort()
