"""Claims over a connection that breaks: none is lost, none is made twice."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.pool_cli.support import unkind_pool
from tests.pool_cli.support.unkind_pool import grant, refuse_claim, update, wait_then_grant, waiting

from penstock.model import PenstockError
from penstock.node.rpc import PoolClaim, PoolClient, PoolLease, pool_client
from penstock_api.v1 import pool_pb2


@pytest.fixture
def client(pool):
    with PoolClient.local(Path(pool.address), "manager") as made:
        yield made


def restart(pool):
    pool.stop()
    pool.start()


def phases(updates):
    return [one.application.phase for one in updates]


def test_a_claim_is_sent_again_with_the_same_request_id_when_the_manager_restarts(pool, client):
    may_go = threading.Event()
    pool.scripts = [wait_then_grant(may_go), grant]
    interrupted = []
    updates = client.acquire(PoolClaim(50, wait_ns=10**11), interrupted.append)
    assert next(updates).application.phase == "waiting"
    restart(pool)
    assert phases(updates) == ["running"]
    first, second = pool.called("Acquire")
    assert first == second
    assert first.request_id
    assert len(interrupted) == 1


def test_a_grant_whose_stream_breaks_before_its_end_is_asked_for_again(pool, client):
    """Until its stream has ended, a claim may be withdrawn: its caller seems to have gone."""

    def break_after_the_grant(pool, request, context):
        yield update(unkind_pool.granted("app-1", request.blocks))
        context.abort(unkind_pool.grpc.StatusCode.UNAVAILABLE, "the manager stops")

    pool.scripts = [break_after_the_grant, grant]
    assert phases(client.acquire(PoolClaim(50))) == ["running"]
    assert len({one.request_id for one in pool.called("Acquire")}) == 1
    assert len(pool.called("Acquire")) == 2


def test_a_stream_that_ends_without_a_grant_is_no_grant(pool, client):
    def end_early(pool, request, context):
        yield waiting("app-1", request.blocks)

    pool.scripts = [end_early, end_early, grant]
    assert phases(client.acquire(PoolClaim(50))) == ["waiting", "waiting", "running"]


def test_a_refused_claim_is_not_sent_again(pool, client):
    pool.scripts = [refuse_claim("not-enough-left", "no room for 50 blocks", "18 are free", "wait")]
    with pytest.raises(PenstockError, match="no room for 50 blocks: 18 are free; wait") as raised:
        list(client.acquire(PoolClaim(50)))
    assert raised.value.reason == "not-enough-left"
    assert len(pool.called("Acquire")) == 1


def test_a_claim_is_given_up_when_nobody_answers_for_long(pool, client, monkeypatch):
    monkeypatch.setattr(pool_client, "FIRST_PATIENCE_S", 0.5)
    pool.stop()
    with pytest.raises(PenstockError, match="no manager of a pool answers at") as raised:
        list(client.acquire(PoolClaim(50)))
    assert raised.value.reason == "unavailable"


def test_a_claim_that_may_wait_is_not_given_up_before(pool, client, monkeypatch):
    monkeypatch.setattr(pool_client, "FIRST_PATIENCE_S", 0.1)
    pool.stop()
    threading.Timer(1.0, pool.start).start()
    assert phases(client.acquire(PoolClaim(50, wait_ns=30 * 10**9))) == ["running"]


def test_a_claim_whose_iteration_is_closed_is_withdrawn(pool, client):
    pool.scripts = [wait_then_grant(threading.Event())]
    updates = client.acquire(PoolClaim(50, name="train", wait_ns=10**11))
    next(updates)
    updates.close()
    pool.wait(lambda: pool.withdrawn == ["train"])


def test_a_claim_that_another_thread_cancels_is_withdrawn_and_not_sent_again(pool, client):
    pool.scripts = [wait_then_grant(threading.Event())]
    errors = []

    def claim():
        try:
            list(client.acquire(PoolClaim(50, name="train", wait_ns=10**12)))
        except PenstockError as error:
            errors.append(error)

    thread = threading.Thread(target=claim)
    thread.start()
    pool.wait(lambda: pool.called("Acquire"))
    client.cancel()
    thread.join(20)
    assert not thread.is_alive()
    assert errors
    pool.wait(lambda: pool.withdrawn == ["train"])
    assert len(pool.called("Acquire")) == 1


def test_events_go_on_after_a_restart_and_none_comes_twice(pool, client):
    pool.events = [pool_pb2.PoolEvent(event="joined", number=n) for n in (1, 2)]
    for at, event in enumerate(pool.events):
        event.time.FromSeconds(1000 + at)
    coming = client.watch(follow=True)
    assert [next(coming).number, next(coming).number] == [1, 2]
    later = pool_pb2.PoolEvent(event="left", number=3)
    later.time.FromSeconds(1002)
    pool.events.append(later)
    assert next(coming).number == 3
    restart(pool)
    last = pool_pb2.PoolEvent(event="joined", number=4)
    last.time.FromSeconds(1003)
    pool.events.append(last)
    assert next(coming).number == 4
    coming.close()


def test_a_lease_is_kept_alive_through_a_restart_until_it_is_closed(pool, client):
    lease = PoolLease(lambda: PoolClient.local(Path(pool.address), "manager"), "train", 0.3)
    pool.wait(lambda: len(pool.kept_alive) >= 3)
    restart(pool)
    before = len(pool.kept_alive)
    pool.wait(lambda: len(pool.kept_alive) > before + 2)
    lease.close()
    after = len(pool.kept_alive)
    assert not lease.is_lost
    threading.Event().wait(0.5)
    assert len(pool.kept_alive) == after


def test_a_lease_learns_that_its_application_is_gone(pool, client):
    pool.unknown = ["train"]
    lease = PoolLease(lambda: PoolClient.local(Path(pool.address), "manager"), "train", 0.3)
    pool.wait(lambda: lease.is_lost)
    lease.close()
