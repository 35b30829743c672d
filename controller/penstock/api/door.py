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
from typing import TYPE_CHECKING

from penstock.agent import Caller

if TYPE_CHECKING:
    from pathlib import Path

_CHUNK_BYTES = 1 << 16
MOST_CONNECTIONS = 256
LOOK_S = 1.0
_PREFIX = "unix-abstract:"


class Door:
    """Accepts local connections at `outside` and joins them to the server at `inside`."""

    def __init__(self, outside: Path, inside: Path) -> None:
        self._outside = outside
        self._inside = inside
        self._callers: dict[str, Caller] = {}  # by address
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
        listener.bind(str(aside))
        aside.chmod(self._mode)
        self._inode = aside.stat().st_ino
        aside.replace(self._outside)  # whoever connects finds it whole
        listener.listen(MOST_CONNECTIONS)
        if self._server is not None:
            self._server.close()  # connections there are go on
        self._server = await asyncio.start_unix_server(self._join, sock=listener)

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
        for task in list(self._tasks):
            task.cancel()
        self._outside.unlink(missing_ok=True)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._tasks) >= MOST_CONNECTIONS:
            writer.close()
            return
        self._tasks.add(task)
        address = f"penstock-{secrets.token_hex(16)}"
        try:
            self._callers[address] = _peer(writer.get_extra_info("socket"))
            inner = socket.socket(socket.AF_UNIX)
            inner.setblocking(False)
            inner.bind(f"\0{address}")
            await asyncio.get_running_loop().sock_connect(inner, str(self._inside))
            to_server = await asyncio.open_unix_connection(sock=inner)
            await asyncio.gather(_pump(reader, to_server[1]), _pump(to_server[0], writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._callers.pop(address, None)
            self._tasks.discard(task)
            writer.close()


def _peer(accepted: socket.socket) -> Caller:
    raw = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", raw)
    return Caller.local(uid, pid)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    finally:
        with contextlib.suppress(OSError, RuntimeError):
            writer.write_eof() if writer.can_write_eof() else writer.close()
