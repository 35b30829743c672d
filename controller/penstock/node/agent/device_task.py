"""Device health task: polls the devices once a second, whatever the number of tenants."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from penstock.devices.inventory import Health, known
from penstock.model import PenstockError
from penstock.node.tenants.tenant_events import record_event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.devices import Device
    from penstock.devices.inventory import DeviceReport
    from penstock.node.agent.agent import Agent

LOOK_NS = 950_000_000
OK = Health("ok")


class DeviceTask:
    """A periodic task of the agent. Its results may be read from any thread."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._looked_at_ns: int | None = None
        self._reports: dict[str, DeviceReport] = {}  # by device UUID
        self._xids: dict[str, Counter[str]] = {}

    def __call__(self, now_ns: int) -> bool:
        """Polls the devices once a second; returns whether it was due."""
        if self._looked_at_ns is not None and now_ns - self._looked_at_ns < LOOK_NS:
            return False
        self._looked_at_ns = now_ns
        for seen in self._agent.source.observe():
            uuid, before = seen.report.id, self.health(seen.report.id)
            self._reports[uuid] = seen.report
            if seen.error_codes:
                counts = self._xids.setdefault(uuid, Counter())
                counts.update(str(xid) for xid in seen.error_codes)
                self._agent.report("device-xid", device=uuid, xids=list(seen.error_codes))
            if self.health(uuid) != before:
                self._tell(uuid, self.health(uuid))
        return True

    def report_of(self, uuid: str) -> DeviceReport | None:
        """The device as of the last poll; None: it was never seen."""
        return self._reports.get(uuid)

    def health(self, uuid: str) -> Health:
        """The health as of the last poll; an unreported one counts as ok."""
        report = self._reports.get(uuid)
        return (known(report.health) if report else None) or OK

    def xids(self, uuid: str) -> dict[str, int]:
        """The number of reports of each XID error since the agent's start, all causes included."""
        return dict(self._xids.get(uuid, ()))

    def check(self, devices: Sequence[Device]) -> None:
        """Raises `PenstockError` when one of these is too unhealthy for a new tenant."""
        for device in devices:
            health = self.health(device.uuid)
            if health.state != "ok":
                raise PenstockError(
                    f"{device} is {health.state}", health.reason,
                    "name another device, or retry after its reset; see penstock devices",
                    reason="not-now",
                )  # fmt: skip

    def usable(self, devices: Sequence[Device]) -> list[Device]:
        """The devices healthy enough for a grant. Raises `PenstockError` when there is none."""
        found = [one for one in devices if self.health(one.uuid).state == "ok"]
        if not found:
            self.check(devices)
        return found

    def _tell(self, uuid: str, health: Health) -> None:
        """Reports it to the operator and each tenant with a share; the shares stay as they are."""
        event = "device-recovered" if health.state == "ok" else f"device-{health.state}"
        self._agent.report(event, device=uuid, reason=health.reason or None)
        for managed in self._agent.managed_tenants():
            if any(share.uuid == uuid for share in managed.grant.devices):
                record_event(managed.tenant.directory, event, device=uuid, reason=health.reason)
