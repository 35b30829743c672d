"""A local socket that is accepted from in an event loop, and made again when it is taken away."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

from penstock.node.agent.peer import take_no_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BACKLOG = 4096  # connections that wait; the kernel refuses further ones, whoever asks
ACCEPTED_AT_ONCE = 64  # before the loop goes on with what else it has to do
NO_DESCRIPTOR_S = 0.2  # until it tries again when no descriptor is left
LOOK_S = 1.0


class Listening:
    """Accepts the connections at `path`, and hands each to `accepted`, which owns it from then on.

    To be used in one event loop alone.
    """

    def __init__(self, path: Path, mode: int, accepted: Callable[[socket.socket], None]) -> None:
        """`mode`: who may connect."""
        self._path = path
        self._mode = mode
        self._accepted = accepted
        self._socket: socket.socket | None = None
        self._inode = 0  # of the socket as it was bound last
        self._keeper: asyncio.Task[None] | None = None
        self._pause: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Begins to accept. The socket that a killed process left is replaced. Raises OSError."""
        self._bind()
        self._keeper = asyncio.get_running_loop().create_task(self._keep())

    def close(self) -> None:
        """Accepts no more, and removes the socket."""
        if self._keeper is not None:
            self._keeper.cancel()
        self._let_go()
        self._path.unlink(missing_ok=True)

    def _bind(self) -> None:
        aside = self._path.with_name(".new.sock")  # one process at a time is here
        aside.unlink(missing_ok=True)
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            take_no_files(made)
            made.bind(str(aside))
            aside.chmod(self._mode)
            inode = aside.stat().st_ino
            made.listen(BACKLOG)  # whoever connects finds it whole
            aside.replace(self._path)
        except BaseException:
            made.close()
            aside.unlink(missing_ok=True)
            raise
        self._let_go()
        self._socket, self._inode = made, inode
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
            await asyncio.sleep(LOOK_S)
            with contextlib.suppress(OSError):  # no room for it, say: the next look tries again
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
