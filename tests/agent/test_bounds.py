"""Requests and resources of one caller delay no other caller's requests."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest
from tests.agent.conftest import GIB, request, wait_until
from tests.agent.support.other_user import NOBODY, as_nobody, needs_root

from penstock.model import PenstockError
from penstock.node.admission.checks import Free, Held, check_admission
from penstock.node.rpc import peer_socket
from penstock.node.rpc.status import cut, trailer_of
from penstock_api.v1 import agent_pb2 as pb
from penstock_api.v1 import agent_pb2_grpc

MIB = 1 << 20


def refused(stub_call, message):
    """The gRPC status of the agent's answer as text."""
    with pytest.raises(grpc.RpcError) as failed:
        list(stub_call(message, timeout=20))
    return failed.value.code().name, failed.value.details()


def test_what_makes_no_sense_is_refused_with_what_why_and_what_to_do(node):
    node.tenant("t", cores=100, memory=GIB)
    big = "x" * 200_000
    share = {"name": "n", "memory_bytes": [GIB], "cores_permille": [10]}
    wrong = [
        *({"tflops": value, "cores_permille": []} for value in
          (float("nan"), float("inf"), float("-inf"), -1.0, 0.0, 2000.0)),
        {"cores_permille": [0]}, {"cores_permille": [1001]}, {"memory_bytes": [0]},
        {"memory_bytes": [2**64 - 1]}, {"count": 2**32 - 1},
        {"mode": 99}, {"measured": 77}, {"lifetime": 55},
        {"grace": {"seconds": 1 << 38}}, {"grace": {"seconds": -1}},
        {"command": [big]}, {"labels": {"a": "x" * 300}}, {"labels": {"x" * 300: "a"}},
        {"labels": {f"l{n}": "x" for n in range(65)}}, {"name": big}, {"policy": big},
        {"request_id": big}, {"devices": [big]}, {"candidates": ["0"] * 1000},
    ]  # fmt: skip
    with grpc.insecure_channel(f"unix:{node.socket}") as channel:
        stub = agent_pb2_grpc.AgentStub(channel)
        for fields in wrong:
            code, words = refused(stub.Grant, pb.GrantRequest(**{**share, **fields}))
            assert code == "INVALID_ARGUMENT", (str(fields)[:80], words)
            assert ";" in words
        for message in ({"mode": 99}, {"cores_permille": 0}, {"cores_permille": 1001}):
            code, words = refused(stub.Resize, pb.ResizeRequest(name="t", **message))
            assert code == "INVALID_ARGUMENT", words
        whole = pb.GrantRequest(**{**share, "command": ["x" * 300_000]})
        assert "larger than max" in refused(stub.Grant, whole)[1]  # nothing that big is read
        long = {"name": "t", "reason": "x" * 2000}
        assert refused(stub.Suspend, pb.SuspendRequest(**long))[0] == "INVALID_ARGUMENT"
        assert refused(stub.Revoke, pb.RevokeRequest(**long))[0] == "INVALID_ARGUMENT"
        for interval in ({"nanos": 1}, {"seconds": 3601}, {"seconds": -5}):
            message = pb.StreamUsageRequest(interval=interval)
            assert refused(stub.StreamUsage, message)[0] == "INVALID_ARGUMENT"
        message = pb.StreamUsageRequest(tenants=["t", "nobody"])
        assert refused(stub.StreamUsage, message)[0] == "NOT_FOUND"
        (tenant,) = stub.ListTenants(pb.ListTenantsRequest(), timeout=10).tenants
        assert (tenant.name, tenant.suspended) == ("t", False)


def test_an_error_stays_short_however_many_tenants_there_are(node):
    with node.client() as agent:
        for number in range(12):
            agent.grant(request(f"t{number:02}", cores=10, memory=MIB))
        with pytest.raises(PenstockError, match=r"t00 .*t07 .*and 4 more"):
            agent.grant(request("more", cores=1000, memory=MIB))
        with pytest.raises(PenstockError, match=r"it has only t00, .*t07 and 4 more"):
            agent.suspend("nobody")


def test_what_an_answer_carries_of_an_error_is_bounded():
    error = PenstockError(*("\U0001f4a5" * 100_000 for _ in range(3)))
    ((_, raw),) = trailer_of(error)
    assert len(raw) <= 2048
    assert pb.Error.FromString(raw).what.endswith("…")
    assert cut("short") == "short"


def test_the_largest_holders_are_named_first():
    held = tuple(Held(f"t{n}", GIB, n) for n in range(1, 40))
    with pytest.raises(PenstockError) as failed:
        check_admission("device", Free(0, 0, held), 1, 1)
    assert failed.value.why.startswith("t39 holds 1Gi and 3.9 cores, t38 holds")
    assert failed.value.why.endswith(" and 31 more")


OTHER = """
import os, pathlib, sys
from penstock.node.rpc import AgentClient
os.setuid({uid})
print(AgentClient.local(pathlib.Path(sys.argv[1])).tenants()[0].name)
"""
CONNECTIONS = """
import os, socket, sys, time
os.setgid({uid}); os.setuid({uid})
held = []
for _ in range(400):
    one = socket.socket(socket.AF_UNIX)
    one.connect(sys.argv[1])
    one.send(b"PRI * HTTP/2.0")
    held.append(one)
print("held", flush=True)
time.sleep(600)
"""


@needs_root
def test_idle_connections_of_one_user_shut_nobody_else_out(node):
    as_nobody(node, "agent.node()")  # opens the way to the socket
    node.tenant("t", cores=10, memory=GIB)
    command = [sys.executable, "-c", CONNECTIONS.format(uid=NOBODY), str(node.socket)]
    hostile = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    descriptors = Path(f"/proc/{node.process.pid}/fd")
    before = len(list(descriptors.iterdir()))
    try:
        assert hostile.stdout.readline() == "held\n"
        with node.client() as agent:
            agent.suspend("t")
        other = [sys.executable, "-c", OTHER.format(uid=NOBODY - 1), str(node.socket)]
        done = subprocess.run(other, capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout == "t\n", done.stderr
        assert len(list(descriptors.iterdir())) < before + 8 * peer_socket.MOST_OF_A_USER
    finally:
        hostile.kill()
        hostile.communicate()
    wait_until(lambda: len(list(descriptors.iterdir())) < before + 10)


def test_a_connection_on_which_nothing_is_said_ends(node):
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as silent:
        silent.settimeout(peer_socket.SPEAKS_WITHIN_S + 20)
        silent.connect(str(node.socket))
        assert silent.recv(1) == b""


HELD = """
import grpc, sys, time
from penstock_api.v1 import agent_pb2 as pb, agent_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
channel = grpc.insecure_channel("unix:" + sys.argv[1], [("grpc.default_authority", "localhost")])
stub = agent_pb2_grpc.AgentStub(channel)
follow = pb.WatchEventsRequest(follow=True)
streams = [stub.WatchEvents(follow) for _ in range(300)]
health = health_pb2_grpc.HealthStub(channel)
streams += [health.Watch(health_pb2.HealthCheckRequest()) for _ in range(300)]
deadline = time.monotonic() + 20
while sum(s.is_active() for s in streams) > 16 and time.monotonic() < deadline:
    time.sleep(0.05)
print(sum(s.is_active() for s in streams), flush=True)
"""


@needs_root
def test_streams_of_one_user_are_bounded_whatever_the_service(node):
    order = f"exec({HELD!r}, {{}})"
    for _ in range(2):  # those of a caller that has ended are given back
        assert as_nobody(node, order).splitlines()[0] == "16"


def test_revokes_that_wait_for_processes_keep_no_other_order_waiting(node):
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True)"
    for number in range(3):
        granted = node.tenant(f"t{number}", cores=10, memory=MIB)
        environment = {**os.environ, **granted.environment}
        environment.pop("LD_PRELOAD", None)
        command = [sys.executable, "-c", f"{deaf}; time.sleep(600)"]
        program = node.launch_in(environment, *command)
        program.stdout.readline()
    with grpc.insecure_channel(f"unix:{node.socket}") as channel:
        stub = agent_pb2_grpc.AgentStub(channel)
        grace = {"seconds": 600}
        waiting = [
            stub.Revoke.future(pb.RevokeRequest(name=f"t{n % 3}", grace=grace), timeout=700)
            for n in range(12)
        ]
        wait_until(lambda: {e["event"] for e in node.events("t2")} >= {"revoked"})
        began = time.monotonic()
        with node.client() as agent:
            agent.grant(request("new", cores=10, memory=MIB))
            agent.revoke("new", 0)
            assert len(agent.tenants()) == 3
        assert time.monotonic() - began < 5
        assert not any(one.done() for one in waiting)
        for one in waiting:
            one.cancel()
