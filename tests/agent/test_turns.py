"""Time slices of an agent's tenants: each gets its share, whatever the others launch."""

from __future__ import annotations

import pytest
from tests.agent.conftest import wait_until
from tests.agent.support.programs import backlogged

from penstock.bench.quota import Workload

pytestmark = pytest.mark.timed


def shares(node, names, seconds):
    """Each one's share of the device over the next `seconds` in percent, by the device's record."""

    def busy():
        records = node.machine().record(0)
        sums = {name: sum(r.busy_ns for r in records if r.tag == name) for name in names}
        return sums, records[0].at_ns

    before, at_ns = busy()
    wait_until(lambda: busy()[1] - at_ns >= seconds * 1e9)
    after, until_ns = busy()
    return {name: 100 * (after[name] - before[name]) / (until_ns - at_ns) for name in names}


def test_an_uneven_tenant_beside_an_even_one_gets_its_share_and_no_more(node):
    uneven = Workload(500, jitter_percent=90)
    node.launch(node.tenant("uneven", cores=350), *uneven.arguments(600))
    node.launch(node.tenant("even", cores=600), *backlogged(600, 500))
    for name in ("uneven", "even"):
        wait_until(lambda name=name: node.usage(name).devices[0].launches > 500)
    got = shares(node, ["uneven", "even"], 4)
    assert abs(got["uneven"] - 35) < 2, got
    assert abs(got["even"] - 60) < 2, got


def test_an_elastic_tenant_uses_what_is_idle_and_gives_it_back_to_who_is_owed_it(node):
    node.launch(node.tenant("lent", cores=300, mode="elastic"), *backlogged(600))
    wait_until(lambda: node.usage("lent").devices[0].launches > 50)
    wait_until(lambda: shares(node, ["lent"], 0.5)["lent"] > 90)
    assert shares(node, ["lent"], 2)["lent"] > 90
    node.launch(node.tenant("owner", cores=680), *backlogged(600))
    wait_until(lambda: node.usage("owner").devices[0].launches > 500)
    wait_until(lambda: shares(node, ["owner"], 1)["owner"] > 64, 30)
    got = shares(node, ["lent", "owner"], 4)
    assert abs(got["owner"] - 68) < 4, got
    assert got["lent"] > 26, got
