"""Processes of a tenant that hand each other memory, and what the device says of it."""

from __future__ import annotations

import os
import socket
import subprocess

from penstock_shim import simulator


class Sharer:
    """A process of `programs/sharer.c`, which runs commands."""

    def __init__(self, program, tenant) -> None:
        self.line, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self.process = subprocess.Popen(
                [program, str(other.fileno())],
                env=tenant.environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                pass_fds=[other.fileno()],
            )
        self.tenant = tenant
        assert self.process.stdout.readline() == "ready\n"

    def tell(self, *words: object) -> str:
        print(*words, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip()

    def do(self, *words: object) -> None:
        assert self.tell(*words) == "0", words

    def hand_out(self, *words: object) -> int:
        """Receives a descriptor from the process."""
        self.do(*words)
        return socket.recv_fds(self.line, 1, 1)[1][0]

    def put(self, descriptor: int) -> None:
        """Sends a descriptor, which stays in the socket until the process takes it."""
        socket.send_fds(self.line, [b"x"], [descriptor])

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.line.close()


def hand_round(exporter: Sharer, importers: list[Sharer], what: str = "export 0") -> None:
    """Each importer has the memory of place 0 mapped in its own; no descriptor is left."""
    descriptor = exporter.hand_out(what)
    for importer in importers:
        importer.put(descriptor)
    os.close(descriptor)


class UsageRecorder:
    """Memory in use by device 0's own record, from a moment at which no process uses it."""

    def __init__(self, machine) -> None:
        self.machine = machine
        self.idle = self._used()

    def _used(self) -> int:
        """Bytes that processes or descriptors keep, beyond contexts."""
        with simulator.Machine(self.machine) as opened:
            context = opened.devices()[0].context_bytes
            alive = sum(1 for r in opened.record(0) if r.alive)
            return opened.usage(0).memory_used_bytes - alive * context

    def in_use(self) -> int:
        return self._used() - self.idle
