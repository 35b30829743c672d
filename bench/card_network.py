"""Training on cards of three nodes that a slow network joins, to the sum of the cards; as JSON.

Usage: build/torch/bin/python bench/card_network.py [ROUNDS] > bench/results/NAME.json

Needs root. ResNet-18 on three CPU workers, each in a network namespace of its own, with the quotas
and samples of `card_training`, and measured by it. The lines carry 1 Gbit/s in each direction, and
a frame needs 0.5 ms from one node to another, so that a round trip takes 1 ms (`wire`;
$PENSTOCK_BENCH_RTT_MS changes it). The cards and the program of node 0 are connected as agents of a
pool connect them: over TLS, but on one node over a unix socket. Rounds alternate between all arms,
each in a process of its own; a figure is the median over rounds, with quartiles.

`card_N`: that card alone, with the program on its node. `one_node`: all three on one node.
`together`: on three nodes. `ratio_together`, `ratio_one_node`: samples a second to the sum of the
cards'. `exchanges_per_step`, `exchanged_bytes_per_step`: what each card exchanges with others.
`card_exchanging`: the part of the time in which each card exchanges or waits for others. `cpu_s`:
processor time of each card's worker for a step.
`exchange_us`: an operation on small tensors with one exchange, without quotas. `network`: round
trips of small TCP messages, and the rate of a large one, as measured.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import wire
from card_training import QUOTAS, SAMPLES, WARM, Group, measure

from penstock.bench.interleaved import load_average, quartiles
from penstock.card.frames import KINDS, Figures, Kind, unpack_figures
from penstock.card.link import Agreement, CardLink, TcpEndpoint, UnixEndpoint
from penstock.card.link.issue import issue
from penstock.card.places import StartedCard

if TYPE_CHECKING:
    from penstock.card.link import Endpoint
    from penstock.card.places import OnCard

RTT_S = float(os.environ.get("PENSTOCK_BENCH_RTT_MS", "1")) / 1e3
LINE = wire.Line(1e9, RTT_S / 2)
ARMS = {"card_0": [0], "card_1": [1], "card_2": [2], "one_node": [0, 0, 0], "together": [0, 1, 2]}
NAMESPACES = ("unshare", "--net", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc")
THIS = (sys.executable, __file__)
PATH = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
PORT = 9000
PINGS, BULK_BYTES = 300, 64 << 20
PROGRAM, WORKER = "penstock:card:program", "penstock:card:worker"


@dataclass(frozen=True)
class NodePlace:
    """A card on a node, which is started as an agent does it."""

    node: int
    is_here: bool  # on the program's node
    worker: tuple[str, ...] = (sys.executable, "-m", "penstock.card.worker")

    tried_s: ClassVar[float] = 0.0  # a lost card ends the benchmark

    def start(self, name: str, on: OnCard) -> StartedCard:
        """See `CardPlace`."""
        agreement, identities = Agreement.new("bench"), issue([PROGRAM, WORKER])
        theirs = {one: getattr(identities[WORKER], one).decode()
                  for one in ("certificate", "key", "authority")}  # fmt: skip
        order = {
            "kind": "cpu", "memory_bytes": None, "application": agreement.application,
            "token": agreement.token.hex(), "peer": PROGRAM,
            "host": "" if self.is_here else wire.address_of(self.node), **theirs,
        }  # fmt: skip
        command = wire.within(self.node, *self.worker, "--listen")
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
        address = json.loads(process.stdout.readline())["address"]
        endpoint: Endpoint
        if self.is_here:
            endpoint = UnixEndpoint(Path(address))
        else:
            host, _, port = address.rpartition(":")
            endpoint = TcpEndpoint(host, int(port), identities[PROGRAM], WORKER)
        link = CardLink(name, endpoint, agreement, kinds=KINDS, on_event=on.event,
                        on_fault=on.fault, on_end=on.end)  # fmt: skip

        def close(timeout_s: float) -> None:
            link.close(timeout_s)
            process.wait()

        return StartedCard(link, wire.address_of(self.node), None, close, process.kill, self)


# In the program.


def child(arm: str) -> None:
    """Measures one arm in this process, which runs on the node of the first card."""
    from penstock.card.device.start import session

    nodes, is_one = ARMS[arm], len(ARMS[arm]) == 1
    quotas = [QUOTAS[nodes[0]]] if is_one else QUOTAS
    session().replace_cards([NodePlace(node, node == nodes[0]) for node in nodes])
    exchange_us = [] if is_one else exchange_times()
    groups: list[Group] = []
    before: list[Figures] = []

    def limit() -> list[int]:
        pids = [card.pid for card in session().cards.cards]
        for pid, quota in zip(pids, quotas, strict=True):
            groups.append(Group(f"penstock-bench-{secrets.token_hex(8)}", quota))
            groups[-1].add(pid)
        before.extend(figures())
        return pids

    samples = SAMPLES[nodes[0]] if is_one else sum(SAMPLES)
    found = measure("resnet18", "penstock", samples, limit)
    found["exchange_us"] = exchange_us
    found["cards"] = [
        per_step(first, last, found["steps"] + WARM)
        for first, last in zip(before, figures(), strict=True)
    ]
    print(json.dumps(found), flush=True)
    session().cards.close()
    for one in groups:
        one.remove()


def figures() -> list[Figures]:
    """What each card has done."""
    from penstock.card.device.start import session

    return [unpack_figures(one) for one in session().stream.ask(Kind.FIGURES)]


def per_step(before: Figures, after: Figures, steps: int) -> dict[str, float]:
    """What a card exchanged in each step, and the part of the time in which it did."""
    passed_ns = after.at_ns - before.at_ns
    sums, gathers = after.sums - before.sums, after.gathers - before.gathers
    summed = after.summed_bytes - before.summed_bytes
    gathered = after.gathered_bytes - before.gathered_bytes
    return {
        "exchanges": (sums + gathers) / steps,
        "exchanged_bytes": (summed + gathered) / steps,
        "exchanging": (after.exchanging_ns - before.exchanging_ns) / passed_ns,
        "busy": (after.busy_ns - before.busy_ns) / passed_ns,
    }


def exchange_times() -> list[float]:
    """The microseconds of a batch normalization of small tensors, for each of its exchanges."""
    import torch
    from torch.nn import functional

    from penstock.card.device.start import session

    session().planner._least_work = 1e4  # small tensors are split, too
    given = torch.randn(56, 16, 4, 4, device="penstock")
    filters = torch.randn(16, 16, 1, 1, device="penstock")
    split = functional.conv2d(given, filters)
    times = []
    for _ in range(20):
        torch.penstock.synchronize()
        first, began = figures()[0], time.perf_counter()
        for _ in range(20):
            functional.batch_norm(split, None, None, training=True)
        torch.penstock.synchronize()
        took, last = time.perf_counter() - began, figures()[0]
        times.append(took * 1e6 / max(1, last.sums - first.sums))
    return times[5:]


# The network itself.


def echo() -> None:
    """Serves `network_figures`: answers each byte; reads the rest to its end, then answers."""
    with socket.create_server((wire.address_of(1), PORT)) as server:
        print(flush=True)
        with server.accept()[0] as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(PINGS):
                connection.sendall(connection.recv(1))
            while connection.recv(1 << 20):
                pass
            connection.sendall(b"x")


def network_figures() -> None:
    """Prints the round trips to node 1 in microseconds, and the rate to it in Mbit/s."""
    times = []
    with socket.create_connection((wire.address_of(1), PORT)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(PINGS):
            began = time.perf_counter()
            connection.sendall(b"x")
            connection.recv(1)
            times.append((time.perf_counter() - began) * 1e6)
        began = time.perf_counter()
        connection.sendall(bytes(BULK_BYTES))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
        took = time.perf_counter() - began
    print(json.dumps({"round_trip_us": times, "mbit_per_s": 8 * BULK_BYTES / took / 1e6}))


def network() -> dict[str, Any]:
    """The network, as measured."""
    with subprocess.Popen(wire.within(1, *THIS, "--echo"), stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        found = asked(0, "--network")
    return {
        "line_mbit_per_s": LINE.bits_per_s / 1e6,
        "line_round_trip_us": RTT_S * 1e6,
        "round_trip_us": quartiles(found["round_trip_us"]),
        "mbit_per_s": found["mbit_per_s"],
    }


# All together.


def asked(node: int, *arguments: str) -> dict[str, Any]:
    """What this program prints on a node with these arguments."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            wire.within(node, *THIS, *arguments),
            env={**os.environ, "PENSTOCK_CARD": "cpu=1", "XDG_RUNTIME_DIR": folder,
                 "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *PATH])},
            stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main(rounds: int) -> None:
    """Prints the figures."""
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    wire.start(len(QUOTAS), LINE)
    result: dict[str, Any] = {
        "quotas": QUOTAS, "samples": SAMPLES, "rounds": rounds, "load_before": load_average(),
        "network": network(),
    }  # fmt: skip
    found = [{arm: asked(ARMS[arm][0], "--child", arm) for arm in ARMS} for _ in range(rounds)]
    speeds = [{arm: one[arm]["samples_per_s"] for arm in ARMS} for one in found]
    result["samples_per_s"] = {arm: quartiles([one[arm] for one in speeds]) for arm in ARMS}
    for arm in ("one_node", "together"):
        ratios = [one[arm] / sum(one[f"card_{n}"] for n in range(len(QUOTAS))) for one in speeds]
        result[f"ratio_{arm}"] = quartiles(ratios)
        result[arm] = exchanges([one[arm] for one in found])
    result["load_after"] = load_average()
    print(json.dumps(result, indent=1))


def exchanges(found: list[dict[str, Any]]) -> dict[str, Any]:
    """What the cards exchanged in the rounds of an arm."""
    cards = [card for one in found for card in one["cards"]]
    return {
        "exchanges_per_step": quartiles([one["exchanges"] for one in cards]),
        "exchanged_bytes_per_step": quartiles([one["exchanged_bytes"] for one in cards]),
        "exchange_us": quartiles([value for one in found for value in one["exchange_us"]]),
        "program_cpu": quartiles([one["program_cpu"] for one in found]),
        "cpu_s": found[-1]["cpu_s"],
        **{
            f"card_{part}": [
                quartiles([one["cards"][n][part] for one in found]) for n in range(len(QUOTAS))
            ]
            for part in ("busy", "exchanging")
        },
    }


if __name__ == "__main__":
    words = sys.argv[1:]
    if words[:1] == ["--child"]:
        child(words[1])
    elif words[:1] == ["--echo"]:
        echo()
    elif words[:1] == ["--network"]:
        network_figures()
    elif words[:1] == ["--inside"]:
        main(int(words[1]))
    else:
        rounds = words[0] if words else "3"
        sys.exit(subprocess.run([*NAMESPACES, *THIS, "--inside", rounds], check=False).returncode)
