"""Calls of local users, which the agent passes on to the pool's manager with their identity."""

from __future__ import annotations

import os
import subprocess
import sys

import grpc
import pytest
from tests.agent.conftest import wait_until
from tests.agent.support.other_user import NOBODY, needs_root
from tests.agent.support.programs import LAUNCHER, backlogged, open_folder

from penstock_api.v1 import agent_pb2, pool_pb2, pool_pb2_grpc


def stub_of(member):
    channel = grpc.insecure_channel(
        f"unix:{member.socket}", [("grpc.default_authority", "localhost")]
    )
    return pool_pb2_grpc.PoolStub(channel)


@pytest.fixture
def pool(member):
    return stub_of(member)


def error_of(raised):
    trailers = dict(raised.value.trailing_metadata() or ())
    return agent_pb2.Error.FromString(trailers["penstock-error-bin"])


CALLER = """
import os, sys, time, grpc
from penstock_api.v1 import agent_pb2, pool_pb2, pool_pb2_grpc
socket, name, uid = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.setgid(uid); os.setuid(uid)
channel = grpc.insecure_channel(f"unix:{socket}", [("grpc.default_authority", "localhost")])
pool = pool_pb2_grpc.PoolStub(channel)
request = pool_pb2.AcquireRequest(
    name=name, blocks=1, request_id=name, lifetime=agent_pb2.LIFETIME_PROCESSES
)
forged = pool_pb2.RelayedCaller(user="root", uid=0).SerializeToString()
for update in pool.Acquire(request, metadata=(("penstock-caller-bin", forged),)):
    print(update.application.phase, len(update.environment), flush=True)
print("acquired", flush=True)
if len(sys.argv) > 4:
    os.environ.update(update.environment)
    os.spawnv(os.P_NOWAIT, sys.argv[4], sys.argv[4:])
    sys.exit(0)
time.sleep(600)
"""


def call_as(member, uid, name, *command):
    """A process of that user that claims the application, and then sleeps or starts the command."""
    open_folder(member.state)
    process = subprocess.Popen(
        [sys.executable, "-c", CALLER, str(member.socket), name, str(uid), *command],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    member.programs.append(process)
    return process


def read_until(process, word):
    lines = []
    while (line := process.stdout.readline().strip()) != word:
        assert line, lines
        lines.append(line)
    return lines


@needs_root
def test_the_manager_learns_who_calls_from_the_agent_and_not_from_the_caller(
    member, manager, shares
):
    manager.updates["app1"] = shares((0, 8, 300))
    process = call_as(member, NOBODY, "app1")
    lines = read_until(process, "acquired")
    method, caller, request = manager.callers[-1]
    assert (method, caller.user, caller.uid) == ("Acquire", "nobody", NOBODY)
    assert request.node == member.started["node"]
    assert lines[0] == "waiting 0"
    assert lines[-1].startswith("running ")
    assert int(lines[-1].split()[1]) > 3  # variables for a program
    assert member.tenants()["app1"].user == "nobody"


def test_a_claim_keeps_the_node_that_it_names_and_has_none_if_it_may_span_the_pool(
    pool, manager, shares
):
    for number, fields in enumerate([{"node": "elsewhere"}, {"span": "SPAN_POOL"}]):
        name = f"app{number}"
        manager.updates[name] = shares((0, 1, 10))
        list(pool.Acquire(pool_pb2.AcquireRequest(name=name, blocks=1, **fields)))
        assert manager.callers[-1][2].node == fields.get("node", "")


def test_an_application_is_alive_as_long_as_its_holder(member, manager, shares):
    manager.updates["app1"] = shares((0, 8, 300))
    process = call_as(member, 0, "app1")
    read_until(process, "acquired")
    manager.wait(lambda: "app1" in manager.report.alive)
    process.kill()
    manager.wait(lambda: "app1" not in manager.report.alive)
    assert manager.state("app1") == "running"  # what becomes of it, the manager decides


def test_an_application_is_alive_as_long_as_a_process_of_its_tenant(member, manager, shares):
    manager.updates["app1"] = shares((0, 8, 300))
    process = call_as(member, 0, "app1", LAUNCHER, *backlogged(600))
    assert process.wait(30) == 0
    manager.wait(lambda: manager.part("app1") and manager.part("app1").processes == 1)
    reports = len(manager.reports)
    manager.wait(lambda: len(manager.reports) > reports + 3)
    assert all("app1" in report.alive for report in manager.reports[reports:])
    os.killpg(process.pid, 9)
    manager.wait(lambda: "app1" not in manager.report.alive)


def test_a_killed_agent_knows_the_holders_again(member, manager, shares):
    manager.updates["app1"] = shares((0, 8, 300))
    process = call_as(member, 0, "app1")
    read_until(process, "acquired")
    member.kill()
    joins, reports = manager.joins, len(manager.reports)
    member.start()
    manager.wait(lambda: manager.joins > joins and len(manager.reports) > reports + 3)
    assert all("app1" in report.alive for report in manager.reports[reports:])
    process.kill()
    manager.wait(lambda: "app1" not in manager.report.alive)  # at once: not after a grace


def test_a_claim_of_a_caller_that_goes_away_is_withdrawn(member, manager):
    process = call_as(member, 0, "waits-1")
    assert process.stdout.readline().startswith("waiting")
    manager.wait(lambda: "waits-1" in manager.report.alive)
    process.kill()
    manager.wait(lambda: manager.withdrawn == ["waits-1"])
    manager.wait(lambda: "waits-1" not in manager.report.alive)


def test_errors_of_the_manager_reach_the_caller_as_they_are(pool):
    with pytest.raises(grpc.RpcError) as raised:
        pool.Why(pool_pb2.WhyRequest(name="nobody-has-it"), timeout=10)
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND
    assert error_of(raised).reason == "no-such-tenant"


def test_a_call_without_a_deadline_is_refused(pool):
    with pytest.raises(grpc.RpcError) as raised:
        pool.GetPool(pool_pb2.GetPoolRequest())
    assert "no deadline" in error_of(raised).what
    assert pool.GetPool(pool_pb2.GetPoolRequest(), timeout=10).pool == "pool-1"


def test_no_node_joins_through_an_agent(pool):
    with pytest.raises(grpc.RpcError) as raised:
        list(pool.Join(iter([pool_pb2.NodeReport(node="mine")])))
    assert error_of(raised).reason == "not-allowed"


def test_while_no_manager_answers_calls_say_so_and_work_again_after(member, manager, pool):
    wait_until(lambda: member.logged("pool joined"))
    manager.stop()
    wait_until(lambda: member.logged("pool lost"))
    with pytest.raises(grpc.RpcError) as raised:
        pool.GetPool(pool_pb2.GetPoolRequest(), timeout=10)
    assert error_of(raised).reason == "unavailable"
    manager.start()
    assert pool.GetPool(pool_pb2.GetPoolRequest(), timeout=10).pool == "pool-1"


def test_an_agent_in_no_pool_says_how_to_join_one(make_member):
    node = make_member(start=False)
    node.options = node.options[:1]
    node.start()
    with pytest.raises(grpc.RpcError) as raised:
        stub_of(node).GetPool(pool_pb2.GetPoolRequest(), timeout=10)
    assert "in no compute pool" in error_of(raised).what
    assert "--pool" in error_of(raised).fix
    with pytest.raises(grpc.RpcError) as raised:
        list(stub_of(node).Acquire(pool_pb2.AcquireRequest(name="a", blocks=1)))
    assert "in no compute pool" in error_of(raised).what


@needs_root
def test_a_user_cannot_set_the_labels_of_the_pool_or_of_the_node(member, manager):
    open_folder(member.state)
    code = CALLER.partition("request =")[0] + (
        "for label in ('penstock.io/pool', 'namespace'):\n"
        "    try:\n"
        "        list(pool.Acquire(pool_pb2.AcquireRequest(name='a', labels={label: 'x'})))\n"
        "    except grpc.RpcError as error:\n"
        "        print(error.code().name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(member.socket), "a", str(NOBODY)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == ["PERMISSION_DENIED"] * 2, done.stderr
    assert manager.callers == []


@needs_root
def test_streams_of_one_user_are_bounded_and_leave_room_for_others(member, manager, pool):
    open_folder(member.state)
    code = CALLER.partition("request =")[0] + (
        "streams = [pool.Watch(pool_pb2.WatchRequest(follow=True)) for _ in range(24)]\n"
        "refused = 0\n"
        "for one in streams:\n"
        "    try:\n"
        "        next(one)\n"
        "    except grpc.RpcError:\n"
        "        refused += 1\n"
        "print(refused, flush=True)\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(member.socket), "a", str(NOBODY)],
        stdout=subprocess.PIPE,
        text=True,
    )
    member.programs.append(process)
    assert int(process.stdout.readline()) == 8  # 16 are allowed
    assert pool.GetPool(pool_pb2.GetPoolRequest(), timeout=10).pool == "pool-1"
