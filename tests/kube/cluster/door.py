"""From this machine's loopback to the API server in its namespace: `door FD ADDRESS PORT`.

FD is a listening socket, made outside; a socket stays in the namespace that it was made in.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys

BLOCK_BYTES = 1 << 18


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while block := await source.read(BLOCK_BYTES):
            sink.write(block)
            await sink.drain()
    sink.close()


async def _serve(listening: socket.socket, address: str, port: int) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner = await asyncio.open_connection(address, port)
        except OSError:  # the API server is not up: the caller sees a closed connection
            writer.close()
            return
        await asyncio.gather(_copy(reader, inner[1]), _copy(inner[0], writer))

    server = await asyncio.start_server(connected, sock=listening)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2], int(sys.argv[3])))
