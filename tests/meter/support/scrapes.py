"""A scrape of an agent's endpoint, and the snapshot that an agent hands to it."""

from __future__ import annotations

import urllib.request
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from penstock.devices import open_machine
from penstock.node.metering.metrics_snapshot import (
    DeviceSnapshot,
    NodeSnapshot,
    TenantSnapshot,
    share_snapshots,
)
from penstock.node.tenants.tenant_events import read_events
from penstock_shim.pages import read_quota


@dataclass
class Run:
    """One scrape of an agent's endpoint, and the pages at that time."""

    text: str
    usage: object
    grant: object
    charged_ns: int

    def samples(self, name: str) -> list:
        """Samples called `name`."""
        families = text_string_to_metric_families(self.text)
        return [one for family in families for one in family.samples if one.name == name]

    def value(self, name: str) -> float:
        (sample,) = self.samples(name)
        return sample.value

    def labels(self) -> dict[str, set[str]]:
        """The labels of each sample's name."""
        found: dict[str, set[str]] = {}
        for family in text_string_to_metric_families(self.text):
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
        return found


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return answer.read().decode()


def node_snapshot(tenant, grant, who, *, usage, meter, at) -> NodeSnapshot:
    """A snapshot as an agent makes it, by the same calls."""
    source = open_machine(Path(grant.machine))
    (device,) = source.devices()
    own = [one for one in source.processes(device) if one.tag == tenant.name]
    held_bytes = sum(one.memory_bytes for one in own if one.alive)
    quota = read_quota(tenant.quota_page)
    events: dict[str, int] = {}
    for event in read_events(tenant.directory):
        events[event["event"]] = events.get(event["event"], 0) + 1
    shares = share_snapshots(
        who, grant, quota.limits, usage, meter=meter,
        measured_bytes={device.uuid: held_bytes},
    )  # fmt: skip
    share = grant.devices[0]
    return NodeSnapshot(
        at_mono_ns=at.mono_ns,
        began_wall_ns=at.wall_ns,
        version="0.1.0",
        devices=(
            DeviceSnapshot(
                device.uuid, device.name, device.simulated, available=True,
                memory_capacity_bytes=device.memory_bytes,
                memory_used_bytes=held_bytes,
                memory_granted_bytes=share.memory_bytes,
                busy_permille=None, cores_granted_permille=share.cores_permille,
                healthy=True, xids={"13": 2}, foreign_processes=1,
            ),
            DeviceSnapshot(
                "GPU-lost", "NVIDIA H200", simulated=False, available=False,
                memory_capacity_bytes=None, memory_used_bytes=None,
                memory_granted_bytes=0, busy_permille=125, cores_granted_permille=0,
            ),
        ),
        tenants=(
            TenantSnapshot(
                who, grant.mode, suspended=False, processes=len(usage.slots), shares=shares,
                events=events, findings={"uncharged": 1}, heartbeat_ns=at.mono_ns,
            ),
        ),
        meter=meter.health(at),
    )  # fmt: skip
