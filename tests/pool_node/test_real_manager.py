"""A node and the real manager: claims through the agent, suspension, and kills of both."""

from __future__ import annotations

import json
import subprocess
import sys

import grpc
import pytest
from tests.agent.conftest import wait_until
from tests.pool_node.conftest import Member
from tests.pool_node.support.programs import start
from tests.pool_node.test_relay import stub_of

from penstock_api.v1 import agent_pb2, pool_pb2


class RealManager:
    def __init__(self, folder):
        self.socket = folder / "pool.sock"
        self.folder = folder
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "penstock", "pool", "serve", "--min-run=0s",
                f"--database=sqlite:///{self.folder / 'pool.db'}", f"--socket={self.socket}",
            ],
            stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        while json.loads(self.process.stderr.readline())["event"] != "started":
            pass

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()


@pytest.fixture
def real(tmp_path):
    made = RealManager(tmp_path)
    yield made
    made.kill()


@pytest.fixture
def node(tmp_path, real):
    made = Member(tmp_path / "state", "--simulate=h200,2", f"--pool={real.socket}")
    made.start()
    wait_until(lambda: made.logged("pool joined"))
    yield made
    made.close()


def claim(pool, name, blocks, priority=1, **fields):
    request = pool_pb2.AcquireRequest(
        name=name,
        request_id=name,
        blocks=blocks,
        priority=priority,
        lifetime=agent_pb2.LIFETIME_UNTIL_REVOKED,
        **fields,
    )
    return list(pool.Acquire(request, timeout=60))[-1]


def phases(pool):
    state = pool.GetPool(pool_pb2.GetPoolRequest(), timeout=20)
    return {one.name: one.phase for one in state.applications}


def settles(pool, wanted):
    def has_settled():
        try:
            return phases(pool) == wanted
        except grpc.RpcError:
            return False

    wait_until(has_settled, 60)


def test_urgent_work_suspends_other_work_which_goes_on_after(node):
    pool = stub_of(node)
    update = claim(pool, "low", 1500, span=pool_pb2.SPAN_NODE)
    assert update.application.phase == "running"
    assert update.environment["PENSTOCK_TENANT_DIR"].endswith("/tenants/low")
    program = start(node, "low")
    wait_until(lambda: node.usage("low").devices[0].launches > 0)
    update = claim(pool, "urgent", 1900, priority=10, span=pool_pb2.SPAN_NODE)
    assert update.application.phase == "running"
    assert phases(pool) == {"low": "suspended", "urgent": "running"}
    assert node.tenants()["low"].suspension == "released"
    pool.Release(pool_pb2.ReleaseRequest(name="urgent"), timeout=60)
    settles(pool, {"low": "running"})
    launches = node.usage("low").devices[0].launches
    wait_until(lambda: node.usage("low").devices[0].launches > launches)
    assert program.poll() is None


def test_kills_of_agent_and_manager_lose_nothing(node, real):
    pool = stub_of(node)
    claim(pool, "low", 1500, span=pool_pb2.SPAN_NODE)
    start(node, "low")
    for kill in ("agent", "manager", "both"):
        request = pool_pb2.AcquireRequest(
            name=f"urgent-{kill}", request_id=kill, blocks=1900, priority=10,
            span=pool_pb2.SPAN_NODE, lifetime=agent_pb2.LIFETIME_UNTIL_REVOKED,
        )  # fmt: skip
        call = pool.Acquire(request, timeout=60)
        next(call)
        if kill != "agent":
            real.kill()
        if kill != "manager":
            node.kill()
        if kill != "agent":
            real.start()
        if kill != "manager":
            node.start()
        # A claim that was not answered may be withdrawn or not; the tenants equal the pool's books.
        wait_until(lambda: agree(pool, node), 60)
        if f"urgent-{kill}" in phases(pool):
            pool.Release(pool_pb2.ReleaseRequest(name=f"urgent-{kill}"), timeout=60)
        settles(pool, {"low": "running"})
        wait_until(lambda: sorted(node.tenants()) == ["low"], 60)


def agree(pool, node):
    try:
        found = phases(pool)
    except grpc.RpcError:
        return False
    there = {name: one.suspension for name, one in node.tenants().items()}
    wanted = {
        name: "released" if phase == "suspended" else ""
        for name, phase in found.items()
        if phase in {"running", "suspended"}
    }
    return there == wanted and len(wanted) == len(found)


def test_a_second_agent_of_the_same_name_is_refused_and_disturbs_nothing(node, real, tmp_path):
    pool = stub_of(node)
    claim(pool, "low", 300)
    before = pool.GetPool(pool_pb2.GetPoolRequest(), timeout=20).nodes[0]
    other = Member(tmp_path / "other", "--simulate=h200", f"--pool={real.socket}")
    try:
        other.start()
        (refused,) = wait_until(lambda: other.logged("pool not joined"))
        assert "another agent is connected as node" in refused["reason"]
        after = pool.GetPool(pool_pb2.GetPoolRequest(), timeout=20).nodes[0]
        assert (before.first, before.last) == (after.first, after.last)
        assert phases(pool) == {"low": "running"}
        assert len(node.logged("pool joined")) == 1
        assert not other.logged("pool joined")
    finally:
        other.close()


def test_an_agent_whose_ratings_are_of_another_precision_is_refused(real, tmp_path):
    other = Member(
        tmp_path / "state", "--simulate=h200", f"--pool={real.socket}", "--pool-precision=int8"
    )
    try:
        other.start()
        (refused,) = wait_until(lambda: other.logged("pool not joined"))
        assert "--pool-precision bf16" in refused["reason"]
    finally:
        other.close()
