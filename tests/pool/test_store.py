"""The pool's database: what was written is there after a kill, and only one manager writes."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from penstock.model import PenstockError
from penstock.pool.event import Event
from penstock.pool.store import Change, NotLeadingError, Store
from penstock.scheduling.blocks.card import Card
from penstock.scheduling.blocks.claim import Claim
from penstock.scheduling.blocks.pool import Pool
from penstock.scheduling.blocks.rules import Rules

GIB = 1 << 30
RULES = Rules(min_run_ns=5, ageing_ns=10, patience_ns=20)


@pytest.fixture
def opened():
    """Opens stores, and closes them after the test."""
    stores = []

    def open_store(url: str) -> Store:
        stores.append(Store(url))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


def cards(node: int) -> list[Card]:
    return [
        Card(f"{node}-{at}", kind, 20, 16 * GIB, "model", frees_memory=True)
        for at, kind in enumerate(("gpu", "gpu", "npu"))
    ]


def keep(store: Store, pool: Pool, **nodes: object) -> None:
    """Writes what has changed, as a manager does before it answers."""
    store.write({name: pool.applications.get(name) for name in pool.changed}, **nodes)
    pool.changed.clear()


def random_order(pool: Pool, rng: random.Random, now: int) -> None:
    """One of what applications, nodes and agents may order."""
    phases = {one.name: one.phase for one in pool.applications.values()}
    suspending = [name for name, phase in phases.items() if phase == "suspending"]
    if suspending and rng.random() < 0.5:
        report = pool.suspended if rng.random() < 0.8 else pool.not_suspended
        report(rng.choice(suspending), now)
    elif phases and rng.random() < 0.3:
        pool.release(rng.choice(list(phases)), now)
    else:
        memory = rng.choice([None, rng.randrange(8 * GIB)])
        claim = Claim(rng.randrange(1, 40), rng.randrange(3), memory, rng.choice(["", "", "npu"]),
                      rng.choice(["pool", "node", "card"]))  # fmt: skip
        pool.acquire(f"app{now}", claim, now, wait=rng.random() < 0.5)


def same(one: Pool, other: Pool) -> bool:
    """Whether both have the same applications, queue, free blocks and free memory."""
    spaces = [
        [(list(node.runs()), node.memory_bytes) for node in pool.space.nodes if node]
        for pool in (one, other)
    ]
    return (one.applications, list(one.queue), spaces[0]) == (
        other.applications, list(other.queue), spaces[1],
    )  # fmt: skip


def test_after_every_order_another_manager_reads_the_pool_as_it_is(url, opened):
    rng = random.Random(7)  # noqa: S311 - a workload
    pool, store = Pool(RULES), opened(url)
    store.lead("first")
    for node in range(3):
        pool.join(f"node{node}", cards(node), 0)
        keep(store, pool, joined=[(f"node{node}", cards(node))])
    for now in range(1, 120):
        random_order(pool, rng, now)
        if now == 60:
            pool.leave("node1", now)
        keep(store, pool, left=["node1"] if now == 60 else [])
        if now % 10 == 0:
            assert same(pool, opened(url).load(RULES))
    assert len(pool.applications) > 10


def test_a_manager_that_was_replaced_writes_nothing_more(url, opened):
    first, second = opened(url), opened(url)
    assert first.lead("one") < second.lead("two")
    pool = Pool(RULES)
    pool.join("node", cards(0), 0)
    with pytest.raises(NotLeadingError, match="two took over"):
        keep(first, pool, joined=[("node", cards(0))])
    assert opened(url).load(RULES).space.nodes == []
    keep(second, pool, joined=[("node", cards(0))])
    assert opened(url).load(RULES).space.size[""] == 60


WRITER = """
import sys
from penstock.pool.store import Store
from penstock.scheduling.blocks.claim import Claim
from penstock.scheduling.blocks.rules import Rules
store = Store(sys.argv[1])
pool = store.load(Rules())
store.lead("writer")
for number in range(10**6):
    name = f"{sys.argv[2]}-{number}"
    if pool.acquire(name, Claim(1), number).outcome == "refused":
        name = next(iter(pool.applications))
        pool.release(name, number)
        name = f"-{name}"
    store.write({one: pool.applications.get(one) for one in pool.changed})
    pool.changed.clear()
    print(name, flush=True)
"""


def test_what_was_answered_before_a_kill_is_there_after_it(url, opened):
    store, pool = opened(url), Pool()
    store.lead("test")
    pool.join("node", cards(0), 0)
    keep(store, pool, joined=[("node", cards(0))])
    expected: set[str] = set()
    for kill in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, url, str(kill)], stdout=subprocess.PIPE, text=True
        ) as writer:
            answered = [writer.stdout.readline()]  # it has begun
            time.sleep(kill / 30)
            writer.send_signal(signal.SIGKILL)
            answered += writer.stdout.readlines()
        whole = [line for line in answered if line.endswith("\n")]
        assert len(answered) - len(whole) <= 1  # the kill may cut the last answer
        for name in map(str.strip, whole):
            expected.discard(name[1:]) if name.startswith("-") else expected.add(name)
        kept = set(opened(url).load(Rules()).applications)  # it would fail for a block given twice
        # One more order may have been written and not answered.
        assert len(kept ^ expected) <= 1
        expected = kept
    assert expected


def test_a_database_that_cannot_be_used_is_reported_with_what_to_do(tmp_path):
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"no database" * 1000)
    for url, why in (
        (f"sqlite:///{damaged}", "file is not a database"),
        (f"sqlite:///{tmp_path}/missing/pool.db", "unable to open database file"),
    ):
        with pytest.raises(PenstockError, match=f"cannot be opened: {why}"):
            Store(url)


@pytest.mark.parametrize(("version", "whose"), [(99, "a newer release"), (1, "an older one")])
def test_a_database_of_another_release_is_refused_and_left_alone(tmp_path, version, whose):
    Store(f"sqlite:///{tmp_path}/pool.db").close()
    connection = sqlite3.connect(tmp_path / "pool.db")
    connection.execute("UPDATE pool SET version = ?", (version,))
    if version == 1:
        connection.execute("ALTER TABLE nodes DROP COLUMN is_draining")
    connection.commit()
    connection.close()
    with pytest.raises(PenstockError, match=f"{whose} wrote it .version {version}"):
        Store(f"sqlite:///{tmp_path}/pool.db")


def test_only_the_newest_events_are_kept(url, opened, monkeypatch):
    monkeypatch.setattr("penstock.pool.store.MOST_EVENTS", 1500)
    store = opened(url)
    store.lead("test")
    for at in range(25):
        store.commit(Change(events=[Event(at, "claimed", f"app{at}") for _ in range(100)]))
    kept = store.events(0, 10_000)
    assert [kept[-1].number, kept[-1].application] == [2500, "app24"]
    assert 1500 <= len(kept) < 2500
    assert [one.number for one in store.events(2400, 3)] == [2401, 2402, 2403]
    assert {one.application for one in store.events(0, 10_000, ["app24"])} == {"app24"}
    again = opened(url)
    assert again.load_holdings()[2] == 24
    assert again.newest_event == 2500
