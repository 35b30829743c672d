"""The view of `penstock top` from an agent's messages, in any order."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock.cli.render.feed import UNTOLD, AgentFeed
from penstock_api.v1 import agent_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

UUID = "GPU-1"


class Agent:
    """An agent that lists a tenant which ends before the next poll, and one without figures."""

    def __init__(self, tells_after_s: float) -> None:
        self.looks = 0
        self.tells_after_s = tells_after_s

    def node(self) -> pb.Node:
        return pb.Node(name="node-1", devices=[pb.Device(uuid=UUID, memory_bytes=1 << 30)])

    def tenants(self) -> list[pb.Tenant]:
        self.looks += 1
        names = ("old", "gone", "new") if self.looks == 1 else ("old", "new")
        return [pb.Tenant(name=name, shares=[pb.Share(device_uuid=UUID)]) for name in names]

    def usage(self, interval_s: float) -> Iterator[pb.UsageReport]:
        yield self._report("old")
        time.sleep(self.tells_after_s)
        yield self._report("new")
        time.sleep(30)  # and then nothing

    def close(self) -> None:
        pass

    def _report(self, name: str) -> pb.UsageReport:
        return pb.UsageReport(
            tenant=name, devices=[pb.DeviceUsage(device_uuid=UUID, memory_bytes=7)]
        )


def seen(agent: Agent) -> dict[str, tuple[int | None, str | None]]:
    """Memory and finding by tenant."""
    rows = [line.row for line in AgentFeed(agent, lambda: None, 1.0).picture().tenants]
    return {row.tenant: (row.memory_used_bytes, row.problem) for row in rows}


def test_a_new_tenants_figures_are_waited_for_and_one_that_has_ended_is_left_out():
    assert seen(Agent(tells_after_s=1.3)) == {"old": (7, None), "new": (7, None)}


def test_figures_that_do_not_come_are_said_to_be_missing():
    assert seen(Agent(tells_after_s=20)) == {"old": (7, None), "new": (None, UNTOLD)}
