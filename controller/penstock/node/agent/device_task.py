"""Device health task: polls all devices once a second, however many tenants there are."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.devices.inventory import Health, known
from penstock.model import PenstockError
from penstock.node.tenants.tenant_events import record_event

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.devices import Device, DeviceBackend
    from penstock.devices.inventory import DeviceReport
    from penstock.node.agent.tenant_registry import TenantRegistry

POLL_PERIOD_NS = 950_000_000
OK = Health("ok")


@dataclass(eq=False)
class DeviceTask:
    """The agent's periodic task that polls devices. Any thread may read its results."""

    source: DeviceBackend
    registry: TenantRegistry
    report: Callable[..., None]

    def __post_init__(self) -> None:
        self._polled_ns: int | None = None
        self._reports: dict[str, DeviceReport] = {}  # by device UUID
        self._xids: dict[str, Counter[str]] = {}

    def __call__(self, now_ns: int) -> bool:
        """Polls the devices if a second has passed; returns whether it polled."""
        if self._polled_ns is not None and now_ns - self._polled_ns < POLL_PERIOD_NS:
            return False
        self._polled_ns = now_ns
        for seen in self.source.observe():
            uuid, before = seen.report.id, self.health(seen.report.id)
            self._reports[uuid] = seen.report
            if seen.error_codes:
                counts = self._xids.setdefault(uuid, Counter())
                counts.update(str(xid) for xid in seen.error_codes)
                self.report("device-xid", device=uuid, xids=list(seen.error_codes))
            if self.health(uuid) != before:
                self._report_health(uuid, self.health(uuid))
        return True

    def report_of(self, uuid: str) -> DeviceReport | None:
        """The device's report from the last poll, None if the device was never seen."""
        return self._reports.get(uuid)

    def health(self, uuid: str) -> Health:
        """The device's health as of the last poll; "ok" if the device reported none."""
        report = self._reports.get(uuid)
        return (known(report.health) if report else None) or OK

    def xids(self, uuid: str) -> dict[str, int]:
        """How often each XID error was reported since the agent started, whatever its cause."""
        return dict(self._xids.get(uuid, ()))

    def check(self, devices: Sequence[Device]) -> None:
        """Raises `PenstockError` if one of the devices is too unhealthy for a new tenant."""
        for device in devices:
            health = self.health(device.uuid)
            if health.state != "ok":
                raise PenstockError(
                    f"{device} is {health.state}", health.reason,
                    "name another device, or retry after its reset; see penstock devices",
                    reason="not-now",
                )  # fmt: skip

    def usable(self, devices: Sequence[Device]) -> list[Device]:
        """The devices healthy enough for a grant. Raises `PenstockError` if there are none."""
        found = [one for one in devices if self.health(one.uuid).state == "ok"]
        if not found:
            self.check(devices)
        return found

    def _report_health(self, uuid: str, health: Health) -> None:
        """Reports the health to the operator and to each tenant on the device; no share changes."""
        event = "device-recovered" if health.state == "ok" else f"device-{health.state}"
        self.report(event, device=uuid, reason=health.reason or None)
        for managed in self.registry.managed_tenants():
            if any(share.uuid == uuid for share in managed.grant.devices):
                record_event(managed.tenant.directory, event, device=uuid, reason=health.reason)
