"""Usage recorder: meters what tenants use, and exports metrics for Prometheus."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock import __version__
from penstock.devices.inventory import known
from penstock.model import PenstockError
from penstock.node.admission.checks import free_shares
from penstock.node.agent.enforcement_task import EnforcementTask
from penstock.node.agent.event_feed import EventTail
from penstock.node.metering.clock import now
from penstock.node.metering.exporter import Exporter
from penstock.node.metering.meter import Meter
from penstock.node.metering.metrics_snapshot import (
    DeviceSnapshot,
    NodeSnapshot,
    TenantSnapshot,
    share_snapshots,
)
from penstock.node.metering.reading import Measured, identity_of, reading_of
from penstock.node.metering.usage import read_usage_since
from penstock.node.tenants.tenant_events import record_event

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from penstock.devices import Device
    from penstock.node.admission.checks import Free
    from penstock.node.agent.device_task import DeviceTask
    from penstock.node.agent.managed_tenant import ManagedTenant
    from penstock.node.agent.node import Node
    from penstock.node.agent.reconcile_loop import ReconcileLoop
    from penstock.node.agent.tenant_registry import TenantRegistry
    from penstock.node.enforcement.enforcer import DeviceFigures
    from penstock.node.metering.clock import Moment
    from penstock.node.metering.meter import TenantSuspicion
    from penstock.node.metering.reading import Identity, TenantReading
    from penstock.node.metering.usage import By, Usage
    from penstock.node.tenants.grant import Grant
    from penstock_shim.pages import UsageSnapshot

OBSERVE_NS = 1_000_000_000
# How often the reading of an unchanged tenant is repeated to the meter. It is shorter than the time
# after which the meter assumes a gap, during which anything may have happened.
SAME_NS = 4_000_000_000
FLUSH_NS = 10_000_000_000
STORED_WITHIN_S = 2.0
_WHERE = ("namespace", "pod", "container")  # labels of a grant that show where its tenant runs


@dataclass
class _Latest:
    """One tenant's last reading, and when it was last passed to the meter."""

    usage: UsageSnapshot | None  # None if the page cannot be read
    grant: Grant
    figures: tuple[DeviceFigures, ...]
    reading: TenantReading
    observed_ns: int  # CLOCK_MONOTONIC

    def is_of(
        self, usage: UsageSnapshot | None, grant: Grant, figures: tuple[DeviceFigures, ...]
    ) -> bool:
        """Whether these inputs would produce the same reading."""
        return self.usage is usage and self.grant is grant and self.figures == figures


@dataclass(eq=False)
class UsageRecorder:
    """The agent's periodic task that meters usage, and takes each tenant's last reading at its end.

    The readings are stored in `directory`.

    Raises:
        PenstockError: another process already stores readings in the directory.
    """

    node: Node
    registry: TenantRegistry
    enforcement: EnforcementTask
    devices: DeviceTask
    loop: ReconcileLoop
    directory: Path | None

    def __post_init__(self) -> None:
        self._meter = Meter(self.directory)
        # Tenants end in various threads, some of which hold the registry's lock, so a thread that
        # holds this lock must never take the registry's.
        self._lock = threading.Lock()
        self._scrape_lock = threading.Lock()  # guards the event counts
        self.exporter = Exporter(self.node.name)
        self._identities: dict[ManagedTenant, Identity] = {}
        self._latest: dict[ManagedTenant, _Latest] = {}
        self._managed_tenants: Sequence[ManagedTenant] = ()  # from the last iteration …
        self._at: Moment | None = None  # … and the time of that iteration
        self._events: dict[str, Counter[str]] = {}  # per tenant: number of events by kind
        self._tail = EventTail(self.node.state, self.registry)
        self._observed_ns = self._flushed_ns = 0

    def __call__(self, now_ns: int) -> bool:
        """Meters the tenants if that is due; returns whether it did."""
        if now_ns - self._observed_ns < OBSERVE_NS:
            return False
        self._observed_ns = now_ns
        at = now()
        managed_tenants = self.registry.managed_tenants()
        with self._lock:
            self._observe(at, managed_tenants)
            if now_ns - self._flushed_ns >= FLUSH_NS:
                self._flushed_ns = now_ns
                self._catch_up()
                self._meter.flush(at)
            if managed_tenants is not self._managed_tenants:
                self._managed_tenants = managed_tenants
                for gone in self._identities.keys() - set(managed_tenants):
                    del self._identities[gone]
                for gone in self._latest.keys() - set(managed_tenants):
                    del self._latest[gone]
        take_snapshot = functools.partial(self._snapshot, managed_tenants, at)
        self.exporter.publish(take_snapshot, self.loop.last_iteration_ns() / 1e9)
        return True

    def close_tenant(self, managed: ManagedTenant) -> None:
        """Takes the last reading of an ended tenant."""
        with self._lock:
            self._catch_up([managed])
            self._latest.pop(managed, None)
            reading = self._reading(managed, managed.last_usage(), self._figures(managed))
            if reading is not None:
                self._record(self._meter.close_tenant(now(), reading)[1])

    def usage(self, since_s: int, until_s: int, by: By, tenant: str | None) -> Usage:
        """The usage up to the last iteration.

        Usage that could not be stored within `STORED_WITHIN_S`, because of a full or slow disk, is
        missing.

        Raises:
            PenstockError: there are no readings, they cannot be read, or none are the tenant's.
        """
        deadline_s = time.monotonic() + STORED_WITHIN_S
        while not self._stored() and time.monotonic() < deadline_s:
            time.sleep(0.02)
        return read_usage_since(since_s, until_s, by=by, tenant=tenant, directory=self.directory)

    def close(self) -> None:
        """Stores all pending readings and stops the exporter."""
        self.exporter.close()
        with self._lock:
            self._catch_up()
            self._meter.close()

    def _stored(self) -> bool:
        """Requests a flush without blocking the loop; returns whether everything is stored."""
        with self._lock:
            self._catch_up()
            return self._meter.flush(now())

    def _observe(self, at: Moment, managed_tenants: Sequence[ManagedTenant]) -> None:
        """Passes changed readings to the meter, and repeats unchanged ones every `SAME_NS`."""
        changed: list[ManagedTenant] = []
        fresh: dict[ManagedTenant, _Latest] = {}
        readings = []
        for managed in managed_tenants:
            usage, figures = managed.supervisor.newest(), self._figures(managed)
            if managed.supervisor.page_problem is not None:
                usage = None
            latest = self._latest.get(managed)
            if latest is not None and latest.is_of(usage, managed.grant, figures):
                if at.mono_ns - latest.observed_ns >= SAME_NS:
                    latest.observed_ns = at.mono_ns
                    readings.append(latest.reading)
                continue
            changed.append(managed)
            reading = self._reading(managed, usage, figures)
            if reading is not None:
                fresh[managed] = _Latest(usage, managed.grant, figures, reading, at.mono_ns)
                readings.append(reading)
        self._catch_up(changed)
        for managed in changed:
            self._latest.pop(managed, None)
        self._latest.update(fresh)
        self._at = at
        self._record(self._meter.observe(at, readings))

    def _catch_up(self, managed_tenants: Iterable[ManagedTenant] | None = None) -> None:
        """Repeats unchanged readings to the meter, since they hold up to the last iteration."""
        if self._at is None:
            return
        readings = []
        for managed in self._latest if managed_tenants is None else managed_tenants:
            latest = self._latest.get(managed)
            if latest is not None and latest.observed_ns < self._at.mono_ns:
                latest.observed_ns = self._at.mono_ns
                readings.append(latest.reading)
        self._record(self._meter.observe(self._at, readings))

    def _reading(
        self, managed: ManagedTenant, usage: UsageSnapshot | None, figures: Sequence[DeviceFigures]
    ) -> TenantReading | None:
        """The reading, from device figures alone if the page is damaged; None without either."""
        if usage is None and not figures:
            return None
        measured = {
            one.device_uuid: Measured(busy_ns=one.busy_ns, memory_bytes=one.memory_bytes)
            for one in figures
        }
        try:
            return reading_of(self._identity(managed), managed.grant, usage, measured)
        except OSError:
            return None

    def _figures(self, managed: ManagedTenant) -> tuple[DeviceFigures, ...]:
        """The devices' figures for the tenant, from the last poll of enforcement."""
        return self.enforcement.enforcer.figures(managed.tenant.directory)

    def _identity(self, managed: ManagedTenant) -> Identity:
        if managed not in self._identities:
            where = {key: managed.grant.labels.get(key, "") for key in _WHERE}
            self._identities[managed] = identity_of(managed.tenant, managed.grant, where)
        return self._identities[managed]

    def _record(self, suspicions: Iterable[TenantSuspicion]) -> None:
        for one in suspicions:
            directory = self.node.state.tenants / one.tenant
            if directory.is_dir():
                found = one.suspicion
                record_event(
                    directory,
                    "suspicious",
                    kind=found.kind,
                    device=found.device_uuid,
                    reason=found.reason,
                )

    def _count_events(self, managed_tenants: Sequence[ManagedTenant]) -> None:
        with self._scrape_lock:
            for tenant, fields in self._tail.read():
                self._events.setdefault(tenant, Counter())[str(fields.get("event", ""))] += 1
            for gone in self._events.keys() - {managed.tenant.name for managed in managed_tenants}:
                del self._events[gone]

    def _snapshot(self, managed_tenants: Sequence[ManagedTenant], at: Moment) -> NodeSnapshot:
        """The snapshot for a scrape, as of the iteration at `at`; runs in the scraper's thread."""
        self._count_events(managed_tenants)
        with self._lock:
            self._catch_up()
        node = self.node
        free: dict[str, Free] = {}
        with contextlib.suppress(PenstockError):  # unknown, because a grant is unreadable
            free = free_shares(node.devices, node.machine, self.registry.grants())
        return NodeSnapshot(
            at_mono_ns=at.mono_ns,
            began_wall_ns=int(node.started_at * 1e9),
            version=__version__,
            devices=tuple(self._device(device, free.get(device.uuid)) for device in node.devices),
            tenants=tuple(
                one for managed in managed_tenants if (one := self._tenant(managed)) is not None
            ),
            meter=self._meter.health(at),
            damaged_tenants=self.registry.damaged_tenants(),
        )

    def _tenant(self, managed: ManagedTenant) -> TenantSnapshot | None:
        try:
            identity = self._identity(managed)
        except OSError:
            return None  # the tenant is ending
        usage = managed.supervisor.usage
        limits = managed.supervisor.limits
        return TenantSnapshot(
            identity=identity,
            mode=managed.grant.mode,
            suspended=managed.grant.suspended
            or bool(limits and limits.suspended)
            or managed.is_held,
            processes=len(usage.slots) if usage else None,
            shares=share_snapshots(
                identity,
                managed.grant,
                limits,
                usage,
                meter=self._meter,
                measured_bytes={
                    one.device_uuid: one.memory_bytes for one in self._figures(managed)
                },
            ),
            events=dict(self._events.get(managed.tenant.name, ())),
            findings=_findings(managed),
            heartbeat_ns=managed.heartbeat_ns,
        )

    def _device(self, device: Device, left: Free | None) -> DeviceSnapshot:
        report = self.devices.report_of(device.uuid)
        health = self.devices.health(device.uuid)
        return DeviceSnapshot(
            device_uuid=device.uuid,
            name=device.name,
            simulated=device.simulated,
            # Enforcement polls all devices once a second, too, and its polls must also succeed.
            available=health.state != "lost" and not self.loop.is_failing(EnforcementTask),
            memory_capacity_bytes=device.memory_bytes,
            memory_used_bytes=known(report.memory_used_bytes) if report else None,
            memory_granted_bytes=device.memory_bytes - left.memory_bytes if left else 0,
            busy_permille=known(report.busy_permille) if report else None,
            cores_granted_permille=1000 - left.cores_permille if left else 0,
            healthy=health.state == "ok",
            xids=self.devices.xids(device.uuid),
            foreign_processes=len(self.enforcement.foreign_on(device.uuid)),
        )


def _findings(managed: ManagedTenant) -> Counter[str]:
    """The number of the tenant's findings, by kind."""
    found = Counter(str(one.kind) for one in managed.findings)
    if managed.supervisor.page_problem and not found["damaged"]:
        found["damaged"] = 1
    if managed.problem or managed.damage:
        found["failed"] = 1
    return +found
