"""Attacks of a user while a co-tenant works: its share, its requests, the reconcile loop."""

from __future__ import annotations

import os
import re
import signal
import statistics
import time
from pathlib import Path

import pytest
from tests.agent.conftest import GIB, Node, wait_until
from tests.agent.support.programs import backlogged, open_to_nobody
from tests.hostile.support.user_requests import GRANT, ask

from .conftest import NOBODY

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user"),
    pytest.mark.timed,
    pytest.mark.alone,  # the attacker is what disturbs the share that is measured, and nothing else
]
WAYS = re.findall(
    r"@way\ndef (\w+)", (Path(__file__).with_name("support") / "attacks.py").read_text()
)
LASTS_S = 1.2


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One node for all attacks: each meets what the earlier ones left behind."""
    node = Node(tmp_path_factory.mktemp("mischief") / "state")
    node.start()
    open_to_nobody(node)
    good = node.tenant("good", cores=300, memory=8 * GIB)
    program = node.launch(good, *backlogged(600))
    wait_until(lambda: node.usage("good").devices[0].launches > 500)
    yield node
    assert program.poll() is None, "the neighbour runs on"
    assert node.stop() == 0
    node.close()


@pytest.fixture
def mine(shared):
    """The hostile user's own tenant, which an attack may have ended."""
    with shared.client() as agent:
        if not any(tenant.name == "mine" for tenant in agent.tenants()):
            assert ask(shared, NOBODY, GRANT.format(cores=10), "mine") == ["done"]


def busy_percent(node: Node, seconds: float) -> float:
    """The co-tenant's share of the device in percent, by the device's own record."""

    def busy() -> tuple[int, int]:
        records = node.machine().record(0)
        return sum(one.busy_ns for one in records if one.tag == "good"), records[0].at_ns

    before, began_ns = busy()
    time.sleep(seconds)
    after, ended_ns = busy()
    return 100 * (after - before) / (ended_ns - began_ns)


@pytest.mark.parametrize("way", WAYS)
def test_no_attack_stops_the_neighbours_share_the_agents_rounds_or_others_orders(
    shared, mine, hostile, way
):
    program = hostile(
        "attacks.py", shared.state, shared.process.pid, shared.started["metrics_port"], way
    )
    assert program.stdout.readline() == "ready\n"
    share = busy_percent(shared, LASTS_S)
    waits_s = []
    with shared.client() as agent:
        for _ in range(5):
            began_s = time.monotonic()
            agent.suspend("good")
            agent.resume("good")
            waits_s.append(time.monotonic() - began_s)
        slowest_ns = agent.node().slowest_round.ToNanoseconds()  # of the last minute
    os.killpg(program.pid, signal.SIGKILL)
    assert 24 < share < 33
    assert statistics.median(waits_s) < 0.5, waits_s
    assert slowest_ns < 2e9
