"""Orders of a pool's manager: what is listed is there, and nothing else of the pool is."""

from __future__ import annotations

import signal
import sys

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from tests.agent.conftest import wait_until
from tests.pool_node.support.manager import GIB
from tests.pool_node.support.programs import start

from penstock_api.v1 import pool_pb2


def test_a_node_that_joins_says_who_it_is_and_brings_its_cards(member, manager):
    first = manager.reports[0]
    assert first.node == member.started["node"]
    assert first.version
    assert (first.pool, first.term) == ("", 0)
    assert [(c.index, c.kind, c.tflops, c.left_out) for c in first.cards] == [
        (0, "gpu", 989.5, ""),
        (1, "gpu", 989.5, ""),
    ]
    assert all(card.frees_memory and card.memory_bytes > GIB for card in first.cards)
    manager.wait(lambda: (manager.report.pool, manager.report.term) == ("pool-1", 1))
    assert wait_until(lambda: member.logged("pool joined"))[0]["pool"] == "pool-1"


def test_an_application_in_the_list_gets_its_tenant_and_one_that_is_not_is_ended(
    member, manager, shares
):
    part = manager.want("app1", shares((0, 8, 300), (1, 4, 200)), labels={"team": "a"})
    report = manager.wait_for("app1", "running")
    assert report.revision == part.revision
    tenant = member.tenants()["app1"]
    assert [(s.device_index, s.memory_bytes, s.cores_permille) for s in tenant.shares] == [
        (0, 8 * GIB, 300),
        (1, 4 * GIB, 200),
    ]
    assert (tenant.user, tenant.labels["team"]) == ("root", "a")
    assert tenant.labels["penstock.io/pool"] == "pool-1"
    manager.end("app1")
    manager.wait_for("app1", None)
    assert member.tenants() == {}


def test_shares_are_resized_and_the_revision_is_reported(member, manager, shares):
    manager.want("app1", shares((0, 8, 300)))
    manager.wait_for("app1", "running")
    part = manager.want("app1", shares((0, 16, 500)))
    manager.wait(lambda: manager.part("app1").revision == part.revision)
    share = member.tenants()["app1"].shares[0]
    assert (share.memory_bytes, share.cores_permille) == (16 * GIB, 500)


def test_room_that_a_shrinking_or_ending_application_gives_is_granted_at_once(
    member, manager, shares
):
    manager.want("old", shares((0, 8, 600)))
    manager.want("other", shares((0, 8, 400)))
    manager.wait_for("other", "running")
    manager.want("old", shares((0, 8, 100)), send=False)
    manager.end("other", send=False)
    manager.want("new", shares((0, 8, 900)))
    manager.wait_for("new", "running")
    assert sorted(member.tenants()) == ["new", "old"]


def test_what_finds_no_room_waits_with_the_reason_and_runs_once_there_is_some(
    member, manager, shares
):
    manager.want("old", shares((0, 8, 600)))
    manager.wait_for("old", "running")
    manager.want("new", shares((0, 8, 900)))
    report = manager.wait_for("new", "pending")
    manager.wait(lambda: "not enough left" in manager.part("new").reason)
    assert report.state == "pending"
    manager.end("old")
    manager.wait_for("new", "running")


def test_a_suspended_application_stops_launching_and_goes_on_after(member, manager, shares):
    manager.want("app1", shares((0, 8, 300)))
    manager.wait_for("app1", "running")
    manager.want("app1", suspended=True)
    manager.wait_for("app1", "suspended")
    assert member.tenants()["app1"].suspended
    manager.want("app1", suspended=False)
    manager.wait_for("app1", "running")
    assert not member.tenants()["app1"].suspended


@pytest.mark.parametrize(
    ("shares", "reason"),
    [
        ([("GPU-00000000-0000-0000-0000-000000000000", GIB, 100)], "unknown device"),
        ([(0, 1 << 50, 100)], "more than the device has"),
    ],
)
def test_what_cannot_work_fails_with_the_reason(member, manager, shares, reason):
    uuids = [one.uuid for one in member.devices()]
    shares = [(uuids[at] if isinstance(at, int) else at, m, c) for at, m, c in shares]
    manager.want("app1", shares)
    assert reason in manager.wait_for("app1", "failed").reason


def test_a_name_that_another_tenant_has_is_taken_until_that_one_ends(make_member, manager):
    member = make_member("--pool-devices=1")
    manager.wait_joined()
    uuids = [one.uuid for one in member.devices()]
    member.tenant("app1")  # on device 0
    manager.want("app1", [(uuids[1], GIB, 100)])
    report = manager.wait_for("app1", "failed")
    assert "not the pool's" in report.reason
    assert "penstock revoke app1" in report.reason
    assert member("revoke", "app1").returncode == 0
    manager.wait_for("app1", "running")


def test_an_application_of_another_user_gets_nothing_of_the_one_before(member, manager, shares):
    manager.want("app1", shares((0, 8, 300)))
    manager.wait_for("app1", "running")
    before = member.tenants()["app1"].created
    manager.want("app1", user="nobody", uid=65534)
    manager.wait(lambda: manager.part("app1").revision == manager.revision)
    manager.wait_for("app1", "running")
    after = member.tenants()["app1"]
    assert after.user == "nobody"
    assert after.created.ToNanoseconds() > before.ToNanoseconds()


def test_processes_are_ended_with_their_application(member, manager, shares):
    manager.want("app1", shares((0, 8, 300)))
    manager.wait_for("app1", "running")
    program = start(member, "app1")
    wait_until(lambda: manager.part("app1").processes == 1)
    assert manager.part("app1").device_bytes > 0
    manager.end("app1")
    manager.wait_for("app1", None)
    assert program.wait(10) != 0


def claimed(ns):
    return Timestamp(seconds=ns // 10**9, nanos=ns % 10**9)


def test_an_application_gets_nothing_of_an_ended_one_with_its_name(member, manager, shares):
    manager.want("app1", shares((0, 8, 300)), claimed=claimed(5))
    manager.wait_for("app1", "running")
    program, before = start(member, "app1"), member.tenants()["app1"].created
    manager.want("app1", claimed=claimed(6))  # same user, devices and size; the end was not heard
    manager.wait(lambda: manager.part("app1").revision == manager.revision)
    manager.wait_for("app1", "running")
    assert program.wait(10) != 0
    assert member.tenants()["app1"].created.ToNanoseconds() > before.ToNanoseconds()


@pytest.mark.parametrize("is_ending", [False, True])
def test_an_application_ends_within_the_grace_of_its_release(member, manager, shares, is_ending):
    manager.want("app1", shares((0, 8, 300)))
    manager.wait_for("app1", "running")
    stubborn = ("import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
                "print('ready', flush=True); time.sleep(60)")  # fmt: skip
    program = start(member, "app1", sys.executable, "-c", stubborn)
    assert program.stdout.readline() == "ready\n"
    del manager.parts["app1"]
    end = pool_pb2.PartEnd(application="app1", grace=Duration(seconds=3600))
    if is_ending:
        manager.send(manager.orders(ends=[end]))
        manager.wait_for("app1", "ending")
    end.grace.FromNanoseconds(0)
    manager.send(manager.orders(ends=[end]))
    manager.wait_for("app1", None, 8)  # by default it would have 10 s
    assert program.wait(5) == -signal.SIGKILL
