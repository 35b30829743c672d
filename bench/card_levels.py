"""Two levels of exchange beside a flat ring: two nodes of two cards, far apart; as JSON.

Usage: build/torch/bin/python bench/card_levels.py [ROUNDS] > bench/results/NAME.json

Needs root. Four CPU workers, two in each of two network namespaces, which lines of 100 Mbit/s join;
a round trip between them takes 50 ms (`wire`; $PENSTOCK_BENCH_RTT_MS changes it). Rounds alternate
between both trainings, each in processes of its own; a figure is the median, with quartiles.

`levels`: as Penstock does it. `ring`: as it does it for cards of which none shares a node with
another, and so by gloo's ring for large sums; the cards are told that they are on four nodes, but
stay where they are. Cards of a node follow each other in the ring. `ring_mixed`: they do not, so
that each part crosses the line at every step; for single exchanges alone.

`step_s`: seconds of a training step of a small GPT with 3.7 MB of gradients, through the device,
with one sample for each card, so that exchanges are most of it; `loss`: that of the fifth step.
`exchanges` and `exchanged_bytes` are those of a card in a step, `exchanging` is the part of the
time that the first card spends in them. `ratio`: how many times as long a step of the ring takes
as one with two levels, in the same round. `sum_ms`, `rows_ms`, `gather_ms`: milliseconds of one
exchange by its bytes, without a device.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import wire
from card_network import NAMESPACES, PATH, NodePlace, figures, per_step
from card_training import step_of

from penstock.bench.interleaved import load_average, quartiles

if TYPE_CHECKING:
    from collections.abc import Callable

RTT_S = float(os.environ.get("PENSTOCK_BENCH_RTT_MS", "50")) / 1e3
LINE = wire.Line(1e8, RTT_S / 2)
ARMS = {"levels": [0, 0, 1, 1], "ring": [0, 0, 1, 1], "ring_mixed": [0, 1, 0, 1]}
TRAINED = ("levels", "ring")
THIS = (sys.executable, __file__)
SAMPLES, WARM, STEPS_S = 4, 5, 8.0
SIZES_BYTES = (4 << 10, 64 << 10, 1 << 20, 4 << 20)
REPEATS = 4


def keep_apart() -> None:
    """Lets a card believe that no other is on its node."""
    from penstock.card.worker import board

    board._node = lambda: [os.getpid()]  # type: ignore[list-item]


# Training.


def worker(arm: str) -> int:
    """A card's worker."""
    sys.argv[1:] = ["--listen"]
    from penstock.card.worker.__main__ import main as serve

    if arm != "levels":
        keep_apart()
    return serve()


def train(arm: str) -> None:
    """Prints the figures of training steps; on the node of the first card."""
    import torch

    from penstock.card.device.start import session

    worker = (*THIS, "--worker", arm)
    session().replace_cards([NodePlace(node, node == ARMS[arm][0], worker) for node in ARMS[arm]])
    torch.set_num_threads(1)
    step = step_of("gpt", "penstock", SAMPLES)
    losses = [step() for _ in range(WARM)]
    before, times = figures()[0], []
    until_s = time.monotonic() + STEPS_S
    while time.monotonic() < until_s:
        began_s = time.monotonic()
        step()
        times.append(time.monotonic() - began_s)
    found = per_step(before, figures()[0], len(times))
    print(json.dumps({"step_s": statistics.median(times), "loss": losses[-1], **found}), flush=True)
    session().cards.close()


# Exchanges alone.


def card(number: int, arm: str) -> None:
    """One card: says where it listens, hears it of all, and prints what its exchanges took."""
    import torch

    from penstock.card.worker.adding import added
    from penstock.card.worker.collectives import Group

    if arm != "levels":
        keep_apart()
    torch.set_num_threads(1)
    cards = len(ARMS[arm])
    group = Group(number, cards, wire.address_of(ARMS[arm][number]))
    print(json.dumps({key: one.hex() for key, one in group.said().items()}), flush=True)
    group.meet({key: bytes.fromhex(one) for key, one in json.loads(input()).items()})

    def sum_of(size_bytes: int) -> None:
        with group.start_sum([torch.ones(size_bytes // 4)]) as rows:
            assert added(rows)[0] == cards

    def rows_of(size_bytes: int) -> None:
        with group.rows(torch.ones(size_bytes // 4)) as rows:
            assert len(rows) == cards

    def gather_of(size_bytes: int) -> None:
        part = size_bytes // cards
        bounds = [one * part for one in range(cards + 1)]
        group.gather(torch.ones(part, dtype=torch.uint8), bounds, torch.device("cpu"))

    found = {
        "sum_ms": {size: timed(sum_of, size) for size in SIZES_BYTES},
        "rows_ms": {SIZES_BYTES[0]: timed(rows_of, SIZES_BYTES[0])},
        "gather_ms": {size: timed(gather_of, size) for size in SIZES_BYTES[::2]},
    }
    print(json.dumps(found), flush=True)
    input()


def timed(exchange: Callable[[int], None], size_bytes: int) -> list[float]:
    """Milliseconds of an exchange, of several that follow each other at once."""
    exchange(size_bytes)
    times = []
    for _ in range(3):
        began_s = time.monotonic()
        for _ in range(REPEATS):
            exchange(size_bytes)
        times.append((time.monotonic() - began_s) * 1e3 / REPEATS)
    return times


def exchanges(arm: str) -> dict[str, Any]:
    """What the first card of an arm says of exchanges."""
    with contextlib.ExitStack() as stack:
        cards = [
            stack.enter_context(subprocess.Popen(
                wire.within(node, *THIS, "--card", str(number), arm), text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(),
            ))
            for number, node in enumerate(ARMS[arm])
        ]  # fmt: skip
        said: dict[str, str] = {}
        for one in cards:
            said |= json.loads(line_of(one.stdout))
        for one in cards:
            assert one.stdin is not None
            one.stdin.write(json.dumps(said) + "\n")
            one.stdin.flush()
        found: list[dict[str, Any]] = [json.loads(line_of(one.stdout)) for one in cards]
        for one in cards:
            one.communicate("\n")
    return found[0]


def line_of(output: IO[str] | None) -> str:
    assert output is not None
    return output.readline()


# All together.


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *PATH])}


def trained(arm: str) -> dict[str, Any]:
    """What `train` prints."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            wire.within(ARMS[arm][0], *THIS, "--train", arm),
            env={**environment(), "PENSTOCK_CARD": "cpu=1", "XDG_RUNTIME_DIR": folder},
            stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main(rounds: int) -> None:
    """Prints the figures."""
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    wire.start(2, LINE)
    result: dict[str, Any] = {
        "rounds": rounds, "line_mbit_per_s": LINE.bits_per_s / 1e6, "round_trip_ms": RTT_S * 1e3,
        "load_before": load_average(),
    }  # fmt: skip
    alone = {arm: exchanges(arm) for arm in ARMS}
    found = [{arm: trained(arm) for arm in TRAINED} for _ in range(rounds)]
    for arm in ARMS:
        result[arm] = {
            what: {size: quartiles(times) for size, times in by_size.items()}
            for what, by_size in alone[arm].items()
        }
    for arm in TRAINED:
        result[arm] |= {key: quartiles([one[arm][key] for one in found]) for key in found[0][arm]}
    result["ratio"] = quartiles([one["ring"]["step_s"] / one["levels"]["step_s"] for one in found])
    result["load_after"] = load_average()
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    words = sys.argv[1:]
    if words[:1] == ["--worker"]:
        os._exit(worker(words[1]))
    elif words[:1] == ["--train"]:
        train(words[1])
    elif words[:1] == ["--card"]:
        card(int(words[1]), words[2])
    elif words[:1] == ["--inside"]:
        main(int(words[1]))
    else:
        rounds = words[0] if words else "3"
        sys.exit(subprocess.run([*NAMESPACES, *THIS, "--inside", rounds], check=False).returncode)
