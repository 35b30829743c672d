"""Limits hold per person: neither subordinate ids nor user namespaces multiply them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tests.agent.conftest import GIB, Node, request
from tests.agent.support.programs import open_folder, open_to_nobody
from tests.hostile.support.user_requests import GRANT, ask

from penstock.node.agent.person import NOBODY as NOBODYS
from penstock.node.agent.person import People, maker_of_namespace

from .conftest import NOBODY

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="acts as other users")
FIRST = 1_000_000  # of the subordinate uids of `nobody`
STRANGE = 3_000_000  # uids without an account and an owner


class SharedNode(Node):
    """A node with its own /etc/subuid."""

    def start(self) -> None:
        file = self.state.with_name("subuid")
        file.write_text(f"# of tests\nnobody:{FIRST}:65536\nno-such-user:1:2\n")
        self.python, python = str(self.state.with_name("python")), sys.executable
        script = f'#!/bin/sh\nmount --bind {file} /etc/subuid && exec {python} "$@"\n'
        Path(self.python).write_text(f'#!/bin/sh\nexec unshare --mount {self.python}.in "$@"\n')
        Path(f"{self.python}.in").write_text(script)
        for one in (self.python, f"{self.python}.in"):
            Path(one).chmod(0o755)
        super().start()


@pytest.fixture
def make_shared(tmp_path):
    nodes = []

    def make(*options: str) -> SharedNode:
        nodes.append(SharedNode(tmp_path / "state", *options))
        nodes[-1].start()
        open_to_nobody(nodes[-1])
        return nodes[-1]

    yield make
    for one in nodes:
        one.close()


def test_subordinate_uids_share_the_limits_of_their_owner(make_shared):
    """Once, each of 65,536 of them might hold as much as a user may."""
    node = make_shared("--user-limit=25")
    grant = GRANT.format(cores=150)
    assert ask(node, FIRST, grant, "a") == ["done"]
    for uid in (FIRST + 1, NOBODY):
        (refused,) = ask(node, uid, grant, "b")
        assert refused.startswith("not-allowed nobody may hold at most 25 %")
        assert "10 % left beside a" in refused
    assert ask(node, STRANGE, grant, "b") == ["done"]  # another's
    (refused,) = ask(node, STRANGE + 1, grant, "c")
    assert refused.startswith("not-allowed"), "uids that nobody owns are one person together"
    with node.client() as agent:
        users = {tenant.name: tenant.user for tenant in agent.tenants()}
    assert users == {"a": "nobody", "b": str(STRANGE)}
    (refused,) = ask(node, FIRST + 1, "agent.revoke(name, 0)", "a")
    assert refused.startswith("not-yours")
    assert ask(node, NOBODY, "agent.revoke(name, 0)", "a") == ["done"]


def test_a_user_has_a_bounded_number_of_tenants_and_is_granted_them_at_a_bounded_rate(make_shared):
    node = make_shared("--user-tenants=3")
    grant = GRANT.format(cores=1)
    assert ask(node, FIRST, grant, "a", "b") == ["done"] * 2
    done, refused = ask(node, NOBODY, grant, "c", "d")
    assert done == "done"
    assert refused.startswith("not-allowed nobody may have at most 3 tenants")
    assert "there are 3: a, b, c" in refused
    answers = ask(node, NOBODY, grant, *("d" for _ in range(120)))
    assert "done" not in answers
    assert answers[0].startswith("not-allowed")
    assert answers[-1].startswith("not-now too many grants at once")
    node.tenant("roots", cores=10, memory=GIB)


CONNECTIONS = """
import os, socket, sys, time
held = []
for number in range(40):
    uid = {first} + number
    os.seteuid(0); os.setegid(0); os.seteuid(uid)
    for _ in range(32):
        one = socket.socket(socket.AF_UNIX)
        one.connect(sys.argv[1])
        one.send(b"PRI * HTTP/2.0")
        held.append(one)
print("held", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("first", [FIRST, STRANGE])
def test_connections_by_many_uids_shut_no_other_user_out(make_shared, first):
    """Once, thirty subordinate uids took all connections that users may have."""
    node = make_shared()
    node.tenant("t", cores=10, memory=GIB)
    command = [sys.executable, "-c", CONNECTIONS.format(first=first), str(node.socket)]
    hostile = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert hostile.stdout.readline() == "held\n"
        other = STRANGE if first == FIRST else NOBODY
        assert ask(node, other, GRANT.format(cores=1), "mine") == ["done"]
        with node.client() as agent:
            agent.suspend("t")
    finally:
        hostile.kill()
        hostile.communicate()


def test_a_user_that_connects_faster_than_the_agent_accepts_shuts_nobody_out(make_shared, hostile):
    """Once, one process of a user kept the kernel's queue full, for root as well."""
    node = make_shared()
    node.tenant("t", cores=10, memory=GIB)
    assert hostile("connection_flood.py", node.socket).stdout.readline() == "full\n"
    for _ in range(10):
        with node.client() as agent:
            agent.suspend("t")
    names = [f"mine{number}" for number in range(3)]
    assert ask(node, STRANGE, GRANT.format(cores=1), *names) == ["done"] * 3


SLOW = """
import os, sys, threading, time
import grpc
from penstock_api.v1 import agent_pb2 as pb, agent_pb2_grpc
os.setgid({uid}); os.setuid({uid})
def ask():
    channel = grpc.insecure_channel("unix:" + sys.argv[1], [
        ("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1),
    ])
    stub = agent_pb2_grpc.AgentStub(channel)
    while True:
        calls = [stub.ListTenants.future(pb.ListTenantsRequest(), timeout=60) for _ in range(16)]
        for call in calls:
            call.exception()
for _ in range({connections}):
    threading.Thread(target=ask, daemon=True).start()
print("asks", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("connections", [1, 32])
def test_one_users_slow_queries_hold_up_nobody_elses_orders(make_shared, connections):
    """Once, they shared one queue with all requests."""
    node = make_shared()
    with node.client() as agent:
        for number in range(300):
            agent.grant(request(f"t{number}", cores=1, memory=1 << 20))
        command = [
            sys.executable,
            "-c",
            SLOW.format(uid=NOBODY, connections=connections),
            str(node.socket),
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as hostile:
            try:
                assert hostile.stdout.readline() == "asks\n"
                time.sleep(1)
                waits = []
                for _ in range(20):
                    began = time.monotonic()
                    agent.suspend("t1")
                    waits.append(time.monotonic() - began)
            finally:
                hostile.kill()
        assert sorted(waits)[len(waits) // 2] < 0.25, waits


def test_unfinished_requests_take_bounded_memory_and_no_calls_of_others(make_shared, hostile):
    """Once, one user's 32 connections took gigabytes in the agent and all of its calls."""
    node = make_shared()
    with node.client() as agent:
        agent.grant(request("t", cores=10, memory=GIB))
    process = psutil.Process(node.process.pid)
    before = process.memory_info().rss
    program = hostile("unfinished_requests.py", node.socket, 32, 300, 200_000)
    assert program.stdout.readline() == "ready\n"
    taken = process.memory_info().rss - before
    assert 20 << 20 < taken < 400 << 20  # it did send much: 32 calls of each connection
    assert ask(node, STRANGE, GRANT.format(cores=1), "mine") == ["done"]
    with node.client() as agent:
        agent.suspend("t")


def test_a_uid_belongs_to_its_owner_to_itself_to_its_namespaces_maker_or_to_nobody(tmp_path):
    file = tmp_path / "subuid"
    people = People(file)
    assert people.owner_of(FIRST) == NOBODYS, "there is no such file"
    file.write_text(f"nobody:{FIRST}:10\n4711:{FIRST + 10}:5\nnobody:x:y\n::\nroot:5000000:10\n")
    people = People(file)
    assert people.owner_of(FIRST + 9) == NOBODY
    assert people.owner_of(FIRST + 14) == 4711
    assert people.owner_of(FIRST + 15) == NOBODYS
    assert people.owner_of(5000001) == NOBODYS, "root's are not an administrator's"
    assert people.owner_of(NOBODY) == NOBODY
    # As a container without root is made, but by another than the file knows.
    open_folder(tmp_path)
    code = (
        "import ctypes, os, time; os.setgroups([]); "
        f"os.setresgid({NOBODY}, {NOBODY}, {NOBODY}); os.setresuid({NOBODY}, {NOBODY}, {NOBODY}); "
        "print(ctypes.CDLL(None).unshare(0x10000000), flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as program:
        told = program.stdout.readline()
        found = maker_of_namespace(program.pid), people.owner_of(STRANGE, program.pid)
        program.kill()
    if told != b"0\n":
        pytest.skip("a user cannot make namespaces here")
    assert found == (NOBODY, NOBODY)
    assert maker_of_namespace(os.getpid()) is None
