"""The link between a program and a card's worker: calls, round trips, uploads; as JSON.

Usage: python bench/card_link.py [ROUNDS] > bench/results/NAME.json

Rounds alternate between all arms. Each arm's figure is the median over rounds, with quartiles.

`post`: a call with a frame of 200 bytes, in the caller's thread, in bursts of 500 that the worker
executes before the next one; also with the worker's execution. `request`: a small request and its
reply. `upload`: frames whose bodies the worker copies to a buffer that stands for the device,
128 MiB in all. Over a socket pair, over TLS on loopback, and `memory`: through shared memory
without the link, the least that a card on this node could cost with it: the program writes into one
of four slots of a memfd, the worker copies from the mapped slot, and a message on a socket tells of
each. `ratio`: memory to the socket pair, within rounds.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.bench.interleaved import load_average, quartiles
from penstock.card.link import (
    Agreement,
    CardLink,
    Description,
    TcpEndpoint,
    TlsIdentity,
    issue,
    listen_tcp,
    serve,
)
from penstock.card.link.spawned import OPTION, inherited, spawn

if TYPE_CHECKING:
    from collections.abc import Callable

COUNT, UPLOAD = 16, 17
KINDS = {COUNT: "count", UPLOAD: "upload"}
AGREEMENT = Agreement("bench", bytes(32))
ABOUT = Description("bench", "memory")
MIB = 1 << 20
SIZES = (MIB // 4, MIB, 8 * MIB)
UPLOADED = 128 * MIB
SLOTS = 4
BURST, REQUESTS = 500, 300
PATH = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}


# The worker's side.


def handler() -> Callable[[int, int, memoryview], bytes]:
    device = memoryview(bytearray(max(SIZES)))

    def handle(kind: int, _: int, body: memoryview) -> bytes:
        if kind == UPLOAD:
            device[: len(body)] = body
        return b""

    return handle


def work(arguments: list[str]) -> int:
    if arguments[0] == OPTION:
        return serve(inherited(int(arguments[1]), ABOUT), handler(), kinds=KINDS)
    if arguments[0] == "--memory":
        return copy_from_memory(int(arguments[1]), int(arguments[2]))
    identity = TlsIdentity.from_files(
        *(Path(arguments[1]) / one for one in ("certificate", "key", "authority"))
    )
    with listen_tcp("127.0.0.1", 0, identity, "front-end") as listener:
        print(listener.port, flush=True)
        return serve(listener.accept(AGREEMENT, ABOUT, 30), handler(), kinds=KINDS)


def copy_from_memory(descriptor: int, told: int) -> int:
    slots = memoryview(mmap.mmap(descriptor, SLOTS * max(SIZES)))
    device = memoryview(bytearray(max(SIZES)))
    with socket.socket(fileno=told) as connection:
        while order := connection.recv(8):
            slot, length = order[0], int.from_bytes(order[1:], "little")
            at = slot * max(SIZES)
            device[:length] = slots[at : at + length]
            connection.send(b"\0")
    return 0


# The program's side.


class Memory:
    """Uploads through shared memory."""

    def __init__(self) -> None:
        self._memory = os.memfd_create("slots", os.MFD_ALLOW_SEALING)
        os.ftruncate(self._memory, SLOTS * max(SIZES))
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fds = (self._memory, theirs.fileno())
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.card_link", "--memory", *map(str, fds)],
            pass_fds=fds, env={**os.environ, **PATH},
        )  # fmt: skip
        theirs.close()

    def upload(self, body: memoryview, count: int) -> None:
        """Up to all slots are on their way at once."""
        for number in range(count):
            if number >= SLOTS:
                self._socket.recv(1)
            slot = number % SLOTS
            os.pwritev(self._memory, [body], slot * max(SIZES))
            self._socket.send(bytes([slot]) + len(body).to_bytes(7, "little"))
        for _ in range(min(SLOTS, count)):
            self._socket.recv(1)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()
        os.close(self._memory)


def post(link: CardLink) -> dict[str, float]:
    body = b"x" * 200
    begun = time.perf_counter()
    for _ in range(BURST):
        link.post(COUNT, body)
    posted = time.perf_counter()
    link.request(COUNT).result()
    done = time.perf_counter()
    return {
        "post_us": 1e6 * (posted - begun) / BURST,
        "executed_us": 1e6 * (done - begun) / BURST,
    }


def request(link: CardLink) -> float:
    begun = time.perf_counter()
    for _ in range(REQUESTS):
        link.request(COUNT, b"x" * 200).result()
    return 1e6 * (time.perf_counter() - begun) / REQUESTS


def upload(link: CardLink, body: memoryview, count: int) -> None:
    for _ in range(count):
        link.post(UPLOAD, body)
    link.request(COUNT).result()


def rate_of(send: Callable[[memoryview, int], None], size: int) -> float:
    """GB/s."""
    body, count = memoryview(bytearray(b"\5" * size)), UPLOADED // size
    begun = time.perf_counter()
    send(body, count)
    return size * count / (time.perf_counter() - begun) / 1e9


def round_of(pair: CardLink, tls: CardLink, memory: Memory) -> dict[str, float]:
    found = {f"pair.{name}": value for name, value in post(pair).items()}
    found |= {f"tls.{name}": value for name, value in post(tls).items()}
    found["pair.request_us"], found["tls.request_us"] = request(pair), request(tls)
    for size in SIZES:
        name = f"upload_{size / MIB:g}_mib_gb_per_s"
        through_pair = rate_of(lambda body, count: upload(pair, body, count), size)
        through_memory = rate_of(memory.upload, size)
        found[f"pair.{name}"], found[f"memory.{name}"] = through_pair, through_memory
        found[f"tls.{name}"] = rate_of(lambda body, count: upload(tls, body, count), size)
        found[f"ratio.{name}"] = through_memory / through_pair
    return found


def tls_link(folder: Path) -> CardLink:
    made = issue.issue(["front-end", "worker"])
    for name in ("certificate", "key", "authority"):
        (folder / name).write_bytes(getattr(made["worker"], name))
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.card_link", "--tls", str(folder)],
        stdout=subprocess.PIPE, env={**os.environ, **PATH},
    )  # fmt: skip
    assert process.stdout is not None
    port = int(process.stdout.readline())
    endpoint = TcpEndpoint("127.0.0.1", port, made["front-end"], "worker")
    return CardLink("card over TLS", endpoint, AGREEMENT, kinds=KINDS)


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        card = spawn("card", "bench.card_link", kinds=KINDS, variables=PATH)
        tls, memory = tls_link(Path(folder)), Memory()
        round_of(card.link, tls, memory)  # everything once, unmeasured
        load = load_average()
        taken = [round_of(card.link, tls, memory) for _ in range(rounds)]
        memory.close()
        tls.close()
        card.close()
    figures = {}
    for name in taken[0]:
        low, middle, high = quartiles([one[name] for one in taken])
        figures[name] = {"median": round(middle, 2), "quartiles": [round(low, 2), round(high, 2)]}
    print(
        json.dumps({"rounds": rounds, "load": load, "cores": os.cpu_count(), **figures}, indent=1)
    )


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].startswith("--"):
        sys.exit(work(sys.argv[1:]))
    main(int(sys.argv[1]) if sys.argv[1:] else 11)
