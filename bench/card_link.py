"""The link between a program and a card's worker: calls, round trips, uploads; as JSON.

Usage: python bench/card_link.py [ROUNDS] > bench/results/NAME.json

Rounds alternate between all arms. Each arm's figure is the median over rounds, with quartiles.

`post`: a call with a frame of 200 bytes, in the caller's thread, in bursts of 500 that the worker
executes before the next one; also with the worker's execution. `request`: a small request and its
reply. `upload`: frames whose bodies the worker copies to a buffer that stands for the device,
128 MiB in all. Over a socket pair (`pair`), with shared memory beside it (`shared`), and over TLS
on loopback (`tls`). `ratio`: shared to pair, within rounds.
"""

from __future__ import annotations

import json
import os
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
SIZES = (MIB // 4, MIB // 2, MIB, 2 * MIB)
UPLOADED = 128 * MIB
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
        shares_memory = "--shares-memory" in arguments
        connection = inherited(int(arguments[1]), ABOUT)
        return serve(connection, handler(), kinds=KINDS, shares_memory=shares_memory)
    identity = TlsIdentity.from_files(
        *(Path(arguments[1]) / one for one in ("certificate", "key", "authority"))
    )
    with listen_tcp("127.0.0.1", 0, identity, "front-end") as listener:
        print(listener.port, flush=True)
        return serve(listener.accept(AGREEMENT, ABOUT, 30), handler(), kinds=KINDS)


# The program's side.


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


def upload(link: CardLink, size: int) -> float:
    """GB/s."""
    body, count = memoryview(bytearray(b"\5" * size)), UPLOADED // size
    begun = time.perf_counter()
    for _ in range(count):
        link.post(UPLOAD, body)
    link.request(COUNT).result()
    return size * count / (time.perf_counter() - begun) / 1e9


def round_of(links: dict[str, CardLink]) -> dict[str, float]:
    found = {}
    for arm in ("pair", "tls"):
        found |= {f"{arm}.{name}": value for name, value in post(links[arm]).items()}
        found[f"{arm}.request_us"] = request(links[arm])
    for size in SIZES:
        name = f"upload_{size / MIB:g}_mib_gb_per_s"
        for arm, link in links.items():
            found[f"{arm}.{name}"] = upload(link, size)
        found[f"ratio.{name}"] = found[f"shared.{name}"] / found[f"pair.{name}"]
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
        pair = spawn("card", "bench.card_link", kinds=KINDS, variables=PATH)
        shared = spawn(
            "card", "bench.card_link", kinds=KINDS, arguments=["--shares-memory"], variables=PATH
        )
        links = {"pair": pair.link, "shared": shared.link, "tls": tls_link(Path(folder))}
        round_of(links)  # everything once, unmeasured
        load = load_average()
        taken = [round_of(links) for _ in range(rounds)]
        links["tls"].close()
        pair.close()
        shared.close()
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
