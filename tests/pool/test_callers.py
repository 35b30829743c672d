"""Callers of a pool's manager: certificates, users whom nodes speak for, and limits on each."""

from __future__ import annotations

import subprocess
import sys

import grpc
import pytest
from tests.agent.support.other_user import NOBODY, needs_root
from tests.agent.support.programs import open_folder
from tests.pool.support.manager_process import Claim, wait_until
from tests.pool.support.relayed import metadata, relayed
from tests.support.openssl import needs_openssl

from penstock.node.rpc.status import error_of
from penstock_api.v1 import pool_pb2 as pb
from penstock_api.v1 import pool_pb2_grpc

NAMES = ("manager", "admin", "penstock:node:n0", "penstock:node:n1")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, check=True)

    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=ca",
            "-keyout", "ca.key", "-out", "ca.crt")  # fmt: skip
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
    for name in NAMES:
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}",
                "-keyout", f"{name}.key", "-out", f"{name}.csr")  # fmt: skip
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key",
                "-CAcreateserial", "-days", "2", "-extfile", "names",
                "-out", f"{name}.crt")  # fmt: skip
    return folder


@pytest.fixture
def served(make_manager, certificates):
    """A manager that listens over TLS; `served(name)` is a channel with that certificate."""
    manager = make_manager(
        "--listen=127.0.0.1:0", f"--tls-cert={certificates / 'manager.crt'}",
        f"--tls-key={certificates / 'manager.key'}", f"--tls-ca={certificates / 'ca.crt'}",
        "--highest-priority=5",
    )  # fmt: skip

    def channel(name):
        credentials = grpc.ssl_channel_credentials(
            (certificates / "ca.crt").read_bytes(),
            (certificates / f"{name}.key").read_bytes(),
            (certificates / f"{name}.crt").read_bytes(),
        )
        return grpc.secure_channel(f"localhost:{manager.said('started')['port']}", credentials)

    return manager, channel


def refused(channel, method, request, **options):
    """The error with which a call is refused."""
    with channel:
        call = getattr(pool_pb2_grpc.PoolStub(channel), method)
        try:
            list(call(request, timeout=10, **options))
        except grpc.RpcError as error:
            return error_of(error, "the pool")
    raise AssertionError("it was not refused")


@needs_openssl
def test_a_node_joins_under_the_name_in_its_certificate_alone(served, make_node):
    manager, channel = served
    wrong = make_node(manager, "n0", channel=lambda: channel("penstock:node:n1"), joins=False)
    wait_until(lambda: "penstock:node:n1 may not join as node n0" in wrong.refused)
    wrong.close()
    admin = make_node(manager, "n0", channel=lambda: channel("admin"), joins=False)
    wait_until(lambda: "admin may not join" in admin.refused)
    admin.close()
    make_node(manager, "n0", channel=lambda: channel("penstock:node:n0"))


@needs_openssl
def test_a_node_calls_for_its_users_and_not_for_itself(served, make_node):
    manager, channel = served
    make_node(manager, "n0", channel=lambda: channel("penstock:node:n0"))
    node, admin = "penstock:node:n0", "admin"
    assert refused(channel(node), "GetPool", pb.GetPoolRequest()).reason == "not-allowed"
    error = refused(channel(admin), "GetPool", pb.GetPoolRequest(), metadata=metadata())
    assert "only nodes pass calls on" in str(error)
    with channel(node) as users:
        stub = pool_pb2_grpc.PoolStub(users)
        claimed = list(stub.Acquire(pb.AcquireRequest(name="a", blocks=2), metadata=metadata()))
        assert claimed[-1].application.owner == "alice@n0"
    bob = metadata("bob", 1001)
    for method, request in (
        ("Release", pb.ReleaseRequest(name="a")),
        ("ResizeApplication", pb.ResizeApplicationRequest(name="a", blocks=1)),
        ("Why", pb.WhyRequest(name="a")),
    ):
        error = refused(channel(node), method, request, metadata=bob)
        assert error.reason == "not-yours"
        assert "alice@n0" in str(error)
    for method, request in (
        ("Drain", pb.DrainRequest(node="n0")),
        ("Compact", pb.CompactRequest()),
    ):
        assert refused(channel(node), method, request, metadata=bob).reason == "not-allowed"
    too_urgent = pb.AcquireRequest(name="b", blocks=1, priority=6)
    error = refused(channel(node), "Acquire", too_urgent, metadata=bob)
    assert "at most 5" in str(error)
    with channel(admin) as administrators:
        stub = pool_pb2_grpc.PoolStub(administrators)
        list(stub.Acquire(pb.AcquireRequest(name="b", blocks=1, priority=6)))
        stub.Release(pb.ReleaseRequest(name="a"), timeout=10)
        state = stub.GetPool(pb.GetPoolRequest(), timeout=10)
        assert [(one.name, one.owner) for one in state.applications] == [("b", "admin")]


@needs_openssl
def test_who_has_no_certificate_of_the_ca_is_not_served(served):
    manager, _ = served
    plain = grpc.insecure_channel(f"localhost:{manager.said('started')['port']}")
    assert refused(plain, "GetPool", pb.GetPoolRequest()).reason == "unavailable"


@needs_root
def test_another_user_on_the_managers_machine_has_applications_of_his_own(manager, make_node):
    make_node(manager)
    manager.acquire("roots", 2)
    open_folder(manager.socket.parent)
    program = f"""
import os, grpc
from penstock_api.v1 import pool_pb2 as pb, pool_pb2_grpc
os.setgid({NOBODY}); os.setuid({NOBODY})
with grpc.insecure_channel("unix:{manager.socket}") as channel:
    stub = pool_pb2_grpc.PoolStub(channel)
    print(list(stub.Acquire(pb.AcquireRequest(name="his", blocks=2)))[-1].application.owner)
    for call, request in ((stub.Release, pb.ReleaseRequest(name="roots")),
                          (stub.Join, iter([pb.NodeReport(node="n9")]))):
        try:
            list([call(request, timeout=5)] if call == stub.Release else call(request, timeout=5))
        except grpc.RpcError as error:
            print(error.code().name)
    stub.Release(pb.ReleaseRequest(name="his"), timeout=5)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          timeout=60, check=False, cwd="/")  # fmt: skip
    lines = done.stdout.split()
    assert lines[0].startswith("nobody@"), done.stderr
    assert lines[1:] == ["PERMISSION_DENIED", "PERMISSION_DENIED"]


def test_a_call_without_a_deadline_is_refused_but_for_streams(manager):
    with manager.channel() as channel, pytest.raises(grpc.RpcError) as raised:
        pool_pb2_grpc.PoolStub(channel).GetPool(pb.GetPoolRequest())
    assert "no deadline" in raised.value.details()


def test_a_user_who_floods_the_pool_with_claims_does_not_keep_others_from_theirs(
    manager, make_node
):
    node = make_node(manager)
    manager.acquire("full", 18)
    claims = [
        Claim(manager, pb.AcquireRequest(blocks=20, wait={"seconds": 60}), metadata("mallory"))
        for _ in range(40)
    ]
    wait_until(lambda: sum(claim.error is not None for claim in claims) >= 20)
    errors = {claim.error.reason for claim in claims if claim.error is not None}
    assert errors == {"not-now"}
    assert relayed(manager, node, "hers", 2).application.phase == "running"
    for claim in claims:
        claim.cancel()
    wait_until(lambda: "waiting" not in manager.phases().values())


def test_messages_beyond_their_bounds_are_refused(manager, make_node):
    make_node(manager)
    for fields, says in (
        ({"name": "n" * 64}, "name"),
        ({"kind": "k" * 5000}, "name"),
        ({"labels": {"k": "v" * 300}}, "label"),
        ({"request_id": "r" * 300}, "request_id"),
        ({"priority": 1 << 40}, "priority"),
        ({"memory_bytes": 1 << 63}, "memory_bytes"),
        ({"wait": {"seconds": -1}}, "wait"),
        ({"wait": {"seconds": 10**11}}, "wait"),
        ({"span": 77}, "span"),
    ):
        error = manager.claim(fields.pop("name", "a"), 1, **fields).ends()
        assert error.reason == "invalid", fields
        assert says in str(error)
    names = pb.KeepAliveRequest(names=["x"] * 5000)
    assert manager.refused("KeepAlive", names).reason == "invalid"
    assert manager.phases() == {}
