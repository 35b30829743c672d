"""Managers that are killed, replaced and out of disk lose nothing and give nothing twice."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time

import grpc
import pytest
from tests.pool.support.fake_node import card
from tests.pool.support.manager_process import blocks_of, wait_until

from penstock_api.v1 import pool_pb2 as pb

KILLS = int(os.environ.get("PENSTOCK_POOL_KILLS", "6"))


class Holder:
    """Claims and releases at random, and knows what it was answered."""

    def __init__(self, manager, seed):
        self.manager = manager
        self.rng = random.Random(seed)  # noqa: S311 - a workload
        self.name = f"app{seed}"
        self.has = None  # the name of its application, once that was answered
        self.errors = []
        self.done = 0
        self._ends = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self):
        self._ends = True
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _run(self):
        number = 0
        while not self._ends:
            if self.has is None:
                number += 1
                self._claim(f"{self.name}-{number}")
            else:
                name, self.has = self.has, None
                self._release(name)
            self.done += 1

    def _claim(self, name):
        blocks, priority = self.rng.randrange(1, 12), self.rng.randrange(3)
        while not self._ends:
            claim = self.manager.claim(
                name, blocks, request_id=name, priority=priority, wait={"seconds": 3}
            )
            while not claim.is_over and not self._ends:
                time.sleep(0.01)
            if not claim.is_over:  # the others hold the rest of the pool from now on
                claim.cancel()
                return
            error = claim.error
            if error is None:
                self.has = name
                return
            if error.reason != "unavailable":
                if error.reason not in {"not-enough-left", "timed-out"}:
                    self.errors.append(str(error))
                return
            time.sleep(0.1)  # killed: the same claim once more

    def _release(self, name):
        is_released = False
        while not is_released and not self._ends:
            with contextlib.suppress(grpc.RpcError):
                self.manager.release(name)
                is_released = True


def test_a_manager_that_is_killed_again_and_again_loses_nothing_and_gives_nothing_twice(
    make_manager, make_node, url
):
    manager = make_manager(url=url)
    nodes = [make_node(manager, f"n{at}", [card(f"n{at}-c0", 10), card(f"n{at}-c1", 10)])
             for at in range(2)]  # fmt: skip
    holders = [Holder(manager, seed) for seed in range(6)]
    rng = random.Random(3)  # noqa: S311 - a workload
    for _ in range(KILLS):
        time.sleep(rng.random() * 1.2)
        manager.kill()
        manager.start()
        check(manager, nodes)
    for holder in holders:
        holder.end()
    wait_until(lambda: not {"starting", "suspending", "resuming", "ending", "waiting"}
               & set(manager.phases().values()), 60)  # fmt: skip
    check(manager, nodes)
    there = manager.phases()
    for holder in holders:
        assert not holder.errors
        if holder.has is not None:
            assert there[holder.has] in {"running", "suspended"}
    assert sum(holder.done for holder in holders) > KILLS


def check(manager, nodes):
    """What the nodes have and what the pool says of it: no device is promised beyond itself."""
    blocks_of(manager.state())
    for node in nodes:
        for orders in node.orders[-50:]:
            permille, memory = {}, {}
            for part in orders.parts:
                if not part.suspended:
                    for share in part.shares:
                        uuid = share.device_uuid
                        permille[uuid] = permille.get(uuid, 0) + share.cores_permille
                        memory[uuid] = memory.get(uuid, 0) + share.memory_bytes
            assert all(value <= 1000 for value in permille.values()), orders
            assert all(value <= 16 << 30 for value in memory.values()), orders


def test_what_was_suspending_when_the_manager_was_killed_goes_on(make_manager, make_node, url):
    manager = make_manager(url=url)
    node = make_node(manager)
    manager.acquire("low", 15)
    node.obeys = False
    manager.claim("urgent", 20, priority=5, request_id="u")
    wait_until(lambda: node.newest("low").suspended)
    manager.kill()
    manager.start()
    urgent = manager.claim("urgent", 20, priority=5, request_id="u")
    wait_until(lambda: manager.phases() == {"low": "suspending", "urgent": "starting"})
    node.obey()
    assert urgent.ends().application.phase == "running"
    assert manager.phases() == {"low": "suspended", "urgent": "running"}


def test_a_second_manager_on_postgresql_waits_names_the_leader_and_takes_over(
    make_manager, make_node, postgres_database
):
    first = make_manager(url=postgres_database)
    second = make_manager(url=postgres_database)
    leader = first.said("started")["leader"]
    error = second.refused("GetPool", pb.GetPoolRequest())
    assert error.reason == "unavailable"
    assert leader in str(error)
    node = make_node(first)
    first.acquire("a", 5)
    term = first.state().term
    first.kill()
    node.manager, node._channel = second, second.channel
    wait_until(lambda: second.said("leading"))
    wait_until(lambda: second.phases() == {"a": "running"})
    assert second.state().term > term
    wait_until(lambda: node.term > term)
    assert node.newest("a").revision == 1


def test_a_leader_that_was_replaced_orders_nothing_more_and_waits(
    make_manager, make_node, postgres_database
):
    from penstock.pool.store import Store  # noqa: PLC0415

    manager = make_manager(url=postgres_database)
    node = make_node(manager)
    manager.acquire("a", 5)
    usurper = Store(postgres_database)
    usurper.lead("usurper")
    orders = len(node.orders)
    error = manager.refused("ResizeApplication", pb.ResizeApplicationRequest(name="a", blocks=9))
    assert "usurper" in str(error)
    wait_until(lambda: manager.said("stopped leading"))
    assert len(node.orders) == orders
    usurper.close()
    wait_until(lambda: manager.phase("a") == "running" if leads(manager) else False)


def leads(manager):
    try:
        return bool(manager.state())
    except grpc.RpcError:
        return False


def test_a_second_manager_on_sqlite_is_refused(manager):
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "pool", "serve", f"--database={manager.url}",
         f"--socket={manager.socket}2"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "another manager runs with it" in done.stderr
    assert manager.state().term == 1


def limited():
    """Lets no file grow beyond what the database needs at its start."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))


def test_with_a_full_disk_operations_are_refused_and_nothing_is_given_that_is_not_kept(
    make_manager, make_node
):
    manager = make_manager(limit=limited)
    node = make_node(manager, cards=[card("c", 2000)])
    names, error = [], None
    for number in range(500):
        name = f"app{number}"
        error = manager.claim(name, 1, command=["x" * 4000]).ends()
        if not isinstance(error, pb.AcquireUpdate):
            break
        names.append(name)
    assert "cannot be written" in str(error), error
    assert "cannot be written" in wait_until(lambda: manager.said("failed"))["reason"]
    assert names
    assert set(manager.phases()) == set(names)
    assert {part.application for part in node.orders[-1].parts} <= set(names)
    resource.prlimit(
        manager.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2
    )  # room again
    assert manager.acquire("after", 1)[-1].application.phase == "running"
    manager.kill()
    manager._limit = None
    manager.start()
    assert set(manager.phases()) == {*names, "after"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--lease=soon"], "--lease"),
        (["--node-timeout=0s"], "--node-timeout"),
        (["--listen=127.0.0.1:0"], "mutual TLS"),
        (["--database=sqlite://"], "in a file"),
    ],
)
def test_options_that_cannot_work_are_refused_with_what_to_do(tmp_path, options, says):
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "pool", "serve",
         f"--database=sqlite:///{tmp_path}/pool.db", f"--socket={tmp_path}/pool.sock", *options],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert says in done.stderr
