"""Listening unix socket in an event loop, which is bound again if its file is removed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

from penstock.node.agent.listening_socket import listening_socket

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BACKLOG = 4096  # connections that may wait; the kernel refuses more
ACCEPTED_AT_ONCE = 64  # connections accepted before the event loop does other work
NO_DESCRIPTOR_S = 0.2  # pause before a retry when no descriptor is left
CHECK_PERIOD_S = 1.0


class Listening:
    """Accepts connections at `path`, and passes each to `accepted`, which then owns it.

    For use in one event loop only.
    """

    def __init__(self, path: Path, mode: int, accepted: Callable[[socket.socket], None]) -> None:
        """`mode`: the file mode of the socket, which decides who may connect."""
        self._path = path
        self._mode = mode
        self._accepted = accepted
        self._socket: socket.socket | None = None
        self._inode = 0  # inode of the socket last bound
        self._keeper: asyncio.Task[None] | None = None
        self._pause: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Starts accepting, replacing a killed process's socket. Raises OSError if that fails."""
        self._bind()
        self._keeper = asyncio.get_running_loop().create_task(self._keep())

    def close(self) -> None:
        """Stops accepting, and removes the socket."""
        if self._keeper is not None:
            self._keeper.cancel()
        self._let_go()
        self._path.unlink(missing_ok=True)

    def _bind(self) -> None:
        made = listening_socket(self._path, socket.SOCK_STREAM, mode=self._mode, backlog=BACKLOG)
        self._let_go()
        self._socket, self._inode = made, self._path.stat().st_ino
        self._attend()

    def _let_go(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(CHECK_PERIOD_S)
            with contextlib.suppress(OSError):  # such as a full disk: the next check retries
                if not self._is_there():
                    self._bind()

    def _is_there(self) -> bool:
        try:
            return self._path.stat().st_ino == self._inode
        except FileNotFoundError:
            return False

    def _attend(self) -> None:
        self._pause = None
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            if self._socket is None:
                return
            try:
                connection, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._socket)
                self._pause = loop.call_later(NO_DESCRIPTOR_S, self._attend)
                return
            connection.setblocking(False)
            self._accepted(connection)
