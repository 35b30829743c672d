"""Durable claims of the compute pool at full size: what a caller waits for; as JSON.

Usage: python bench/pool_durable.py [FOLDER] > bench/results/NAME.json

A database (SQLite, as `penstock pool serve` uses it) with 10,000 nodes and 100,000 applications is
written into FOLDER and read by a manager. Claims and releases are carried out by the manager in
this process: decided, written and synced, one after another, while the manager's periodic work
goes on beside it. Without gRPC, and without nodes: `ended` is what a node's report that an
application is gone takes. The disk's own `fdatasync` of one page is timed in turns with them.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from penstock.bench.interleaved import load_average
from penstock.bench.pool import CARD_BLOCKS, CARD_BYTES, CARDS, SIZES, WEIGHTS
from penstock.pool.caller import Caller
from penstock.pool.claims import Asked, Claims
from penstock.pool.holding import Holding
from penstock.pool.manager import Manager
from penstock.pool.membership import Membership
from penstock.pool.nodes import AWAY_AFTER_NS
from penstock.pool.rpc.view import pool_state
from penstock.pool.settings import Settings
from penstock.pool.store import Change, Store
from penstock.pool.ticks import PERIOD_S, tick
from penstock.scheduling.blocks.card import Card
from penstock.scheduling.blocks.claim import Claim
from penstock.scheduling.blocks.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
Time = tuple[float, float]  # in seconds: as a clock shows it, and of the processor
NODES, APPLICATIONS, TIMED, OWNERS = 10_000, 100_000, 1000, 1000
HOUR_NS = 3600 * 10**9


def written(url: str, chance: random.Random) -> Store:
    """A database with all nodes and applications, each of which runs on its node."""
    pool = Pool()
    joined = []
    for at in range(NODES):
        cards = [
            Card(f"{at}-{card}", "gpu", CARD_BLOCKS, CARD_BYTES, "card", frees_memory=True)
            for card in range(CARDS)
        ]
        pool.join(f"node{at}", cards, 0)
        joined.append((f"node{at}", cards))
    holdings = {}
    for number in range(APPLICATIONS):
        name = f"python-{number}" if number else "python"
        size = chance.choices(SIZES, WEIGHTS)[0]
        if pool.acquire(name, Claim(size, span="node"), 0).outcome != "granted":
            continue
        core = pool.applications[name]
        node = pool.node_of(core.runs[0].first)
        holdings[name] = Holding(
            name, f"user{number % OWNERS}", 0, 0, size, f"request-{number}", until_revoked=True,
            command=["python", "train.py"], state="running", revision=1, placed=core.runs,
            nodes=(node.name,) if node else (),
        )  # fmt: skip
    store = Store(url)
    store.lead("bench")
    applications = {name: pool.applications[name] for name in holdings}
    store.commit(Change(applications, holdings, joined))
    return store


def timed(times: list[Time], function: Callable[..., T], *args: object) -> T:
    """Calls a function, and notes how long it took."""
    begun, processor = time.perf_counter(), time.thread_time()
    result = function(*args)
    times.append((time.perf_counter() - begun, time.thread_time() - processor))
    return result


def figures(times: list[Time]) -> dict[str, object]:
    """Median, 99th percentile and maximum, in milliseconds."""
    ordered = sorted(wall for wall, _ in times)
    processor = sorted(processor for _, processor in times)
    return {
        "calls": len(ordered),
        "processor_median_ms": round(1e3 * processor[len(ordered) // 2], 3),
        "processor_p99_ms": round(1e3 * processor[int(0.99 * len(ordered))], 3),
        "median_ms": round(1e3 * ordered[len(ordered) // 2], 3),
        "p99_ms": round(1e3 * ordered[int(0.99 * len(ordered))], 3),
        "max_ms": round(1e3 * ordered[-1], 3),
    }


def gone(manager: Manager, name: str) -> None:
    """What the report of an application's nodes does that they have ended it."""
    with manager.changing() as registry:
        one = registry.holdings[name]
        for node in one.nodes:
            registry.gone_from(one, node)


def hear(manager: Manager, ago_ns: int = 0) -> None:
    """Lets all nodes have been heard of `ago_ns` before now."""
    for node in manager.nodes:
        node.heard_ns = time.monotonic_ns() - ago_ns


def measure(folder: Path) -> dict[str, object]:
    """All figures, with a new database in `folder`."""
    chance = random.Random(42)  # noqa: S311 - a workload
    store = written(f"sqlite:///{folder}/pool.db", chance)
    reads: list[Time] = []
    settings = Settings(node_timeout_ns=HOUR_NS)  # no node is connected
    manager = timed(reads, lambda: Manager(store, settings))
    claims, membership = Claims(manager), Membership(manager)
    ends = threading.Event()
    ticks: list[Time] = []

    def work() -> None:
        while not ends.wait(PERIOD_S):
            hear(manager)
            timed(ticks, tick, manager, membership, claims)

    beside = threading.Thread(target=work)
    beside.start()
    acquires: list[Time] = []
    releases: list[Time] = []
    ended: list[Time] = []
    syncs: list[Time] = []
    names = list(manager.registry.holdings)
    file = os.open(folder / "page", os.O_WRONLY | os.O_CREAT, 0o600)
    load_before = load_average()
    for number in range(TIMED):
        caller = Caller(f"user{chance.randrange(OWNERS)}", user="someone", uid=1000)
        size = chance.choices(SIZES, WEIGHTS)[0]
        asked = Asked(Claim(size, span="node"), request_id=f"new-{number}", until_revoked=True,
                      command=("python", "train.py"))  # fmt: skip
        names.append(timed(acquires, claims.acquire, asked, caller))
        at = chance.randrange(len(names))
        names[at], names[-1] = names[-1], names[at]
        name = names.pop()
        caller = Caller("root", is_admin=True)
        timed(releases, claims.release, name, caller)
        timed(ended, gone, manager, name)
        os.write(file, bytes(4096))
        timed(syncs, os.fdatasync, file)
    ends.set()
    beside.join()
    os.close(file)
    space = manager.registry.pool.space
    cut_off: list[Time] = []
    for ago_ns in (AWAY_AFTER_NS, 0):
        hear(manager, ago_ns)
        timed(cut_off, membership.check)
    shown: list[Time] = []
    timed(shown, lambda: pool_state(manager, summary=True))
    timed(shown, lambda: pool_state(manager, summary=False))
    return {
        "nodes": NODES,
        "applications": len(manager.registry.holdings),
        "used_percent": round(100 * (1 - space.free[""] / space.size[""]), 1),
        "acquire": figures(acquires),
        "release": figures(releases),
        "ended": figures(ended),
        "fdatasync_alone": figures(syncs),
        "periodic_work": figures(ticks),
        "all_nodes_away_s": round(cut_off[0][0], 2),
        "all_nodes_back_s": round(cut_off[1][0], 2),
        "summary_s": round(shown[0][0], 3),
        "whole_state_s": round(shown[1][0], 3),
        "read_at_start_s": round(reads[0][0], 2),
        "load_before": load_before,
        "load": load_average(),
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as place:
        print(json.dumps(measure(Path(place)), indent=1))
