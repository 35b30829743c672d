"""How soon launches stop when a tenant is suspended with its memory."""

from __future__ import annotations

import time

import pytest
from tests.agent.conftest import wait_until
from tests.agent.support.programs import backlogged
from tests.suspension.conftest import settled

pytestmark = pytest.mark.timed
STOPPED_WITHIN_S = 0.1


def test_launches_stop_within_a_tenth_of_a_second(node, record_property):
    granted = node.tenant("t", cores=1000)
    node.launch(granted, *backlogged(60, kernel_us=20))
    wait_until(lambda: node.usage("t").devices[0].launches > 100)
    stopped_s = []
    with node.client() as agent:
        for _ in range(3):
            began_s = time.monotonic()
            agent.suspend("t", release_memory=True)
            launches, changed_s = node.usage("t").devices[0].launches, began_s
            while time.monotonic() - began_s < 4 * STOPPED_WITHIN_S:
                now = node.usage("t").devices[0].launches
                if now != launches:
                    launches, changed_s = now, time.monotonic()
            stopped_s.append(changed_s - began_s)
            settled(node, "t", "released")
            agent.resume("t")
            settled(node, "t", "")
            wait_until(lambda: node.usage("t").devices[0].launches > launches + 100)  # noqa: B023
    record_property("launches stop after a suspension", f"{max(stopped_s) * 1000:.1f} ms")
    assert sorted(stopped_s)[1] < STOPPED_WITHIN_S
