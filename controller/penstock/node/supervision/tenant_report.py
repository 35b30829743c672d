"""Tenant report (`penstock ps`): usage according to shim and device, and the quota."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from penstock.devices import (
    DeviceBackend,
    DeviceLostError,
    DeviceProcess,
    open_devices,
    open_machine,
)
from penstock.model import PenstockError
from penstock.node.supervision.shim_bypass import read_finding
from penstock.node.tenants.handshake_file import host_pids
from penstock.node.tenants.tenant import Tenant, tenants_of
from penstock.node.tenants.tenant_processes import TENANT_VARIABLE, environments, members_of
from penstock_shim.pages import PageError, UsageSnapshot, read_quota, read_usage
from penstock_shim.recent import RecentUse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.node.tenants.grant import DeviceGrant, Grant
    from penstock.node.tenants.state import State
    from penstock_shim.pages import DeviceUsage

NOT_KNOWN = "unknown"


@dataclass(frozen=True)
class Row:
    """One tenant on one device. None means that a value is unknown."""

    tenant: str
    user: str
    command: tuple[str, ...]
    mode: str
    device_index: int | None  # None, with empty names, if the grant cannot be read
    device_uuid: str
    device_name: str
    simulated: bool
    memory_used_bytes: int | None  # according to the shim's ledger
    memory_peak_bytes: int | None
    memory_quota_bytes: int | None
    cores_used_permille: int | None  # as measured by the shim over about a second
    cores_quota_permille: int | None
    allowance_permille: int | None  # an elastic tenant's share right now
    refusals: int | None
    waits: int | None
    processes: tuple[tuple[int, str], ...] | None  # pid and name of each process that holds a slot
    members: tuple[int, ...] | None  # all processes of the tenant
    device_memory_bytes: int | None  # as the device itself measures it
    device_cores_permille: int | None
    supervised: bool
    problem: str | None = None
    told_processes: int | None = None  # number of processes with a slot, if `processes` is unknown
    suspension: str = ""  # "launches", "releasing", "released", "restoring"; empty if it runs
    host_memory_bytes: int = 0  # of its device memory, all devices together

    @property
    def process_count(self) -> int | None:
        """The number of processes that hold a slot."""
        return self.told_processes if self.processes is None else len(self.processes)

    def as_dict(self) -> dict[str, object]:
        """The row in base units and plain values, for JSON and YAML."""
        return {
            "tenant": self.tenant,
            "user": self.user,
            "command": list(self.command),
            "mode": self.mode,
            "device": {
                "index": self.device_index,
                "uuid": self.device_uuid,
                "name": self.device_name,
                "simulated": self.simulated,
            },
            "memory": {
                "quota_bytes": self.memory_quota_bytes,
                "used_bytes": self.memory_used_bytes,
                "peak_bytes": self.memory_peak_bytes,
                "device_measured_bytes": self.device_memory_bytes,
            },
            "cores": {
                "quota_percent": _percent(self.cores_quota_permille),
                "used_percent": _percent(self.cores_used_permille),
                "allowed_percent": _percent(self.allowance_permille),
                "device_measured_percent": _percent(self.device_cores_permille),
            },
            "refusals": self.refusals,
            "waits": self.waits,
            "process_count": self.process_count,
            "processes": None
            if self.processes is None
            else [{"pid": pid, "name": name} for pid, name in self.processes],
            "members": None if self.members is None else list(self.members),
            "supervised": self.supervised,
            "problem": self.problem,
            "suspension": self.suspension,
            "host_memory_bytes": self.host_memory_bytes,
        }


def _charged(grant: Grant, figures: DeviceUsage | None) -> int | None:
    """The charged memory: none while it is released, although the page keeps the charges."""
    if figures is None:
        return None
    return figures.total_bytes if grant.holds_devices else 0


def _percent(permille: int | None) -> float | None:
    return None if permille is None else permille / 10


@dataclass
class _Meter:
    """Cumulative figures of a tenant on a device, from which its recent use is computed."""

    use: RecentUse = field(default_factory=RecentUse)
    seen: tuple[int, int] | None = None  # at_ns and busy_ns, as last reported by the device
    device_permille: int | None = None

    def device_busy(self, at_ns: int, busy_ns: int) -> None:
        """Updates the meter with the device's own total of busy time."""
        if self.seen and at_ns > self.seen[0]:
            busy, elapsed = busy_ns - self.seen[1], at_ns - self.seen[0]
            self.device_permille = max(0, min(1000, busy * 1000 // elapsed))
        self.seen = (at_ns, busy_ns)


class Reporter:
    """Reports all tenants of a state directory. Rates need two calls of `rows`, some time apart."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._sources: dict[str | None, DeviceBackend | None] = {}
        self._meters: dict[tuple[str, str], _Meter] = {}

    def rows(self) -> list[Row]:
        """One row for each tenant and device, ordered by tenant name."""
        tenants = tenants_of(self._state)
        found = environments(TENANT_VARIABLE) if tenants else {}
        rows = []
        seen: dict[tuple[str | None, str], list[DeviceProcess] | None] = {}
        for tenant in tenants:
            members = tuple(members_of(found, tenant.directory))
            try:
                rows += self._rows_of(tenant, members, seen)
            except (PenstockError, OSError) as error:
                if tenant.directory.exists():  # otherwise the tenant has ended meanwhile
                    rows.append(_damaged(tenant, members, str(error)))
        return rows

    def _rows_of(
        self,
        tenant: Tenant,
        members: tuple[int, ...],
        seen: dict[tuple[str | None, str], list[DeviceProcess] | None],
    ) -> list[Row]:
        grant = tenant.grant()
        problem, usage = None, None
        allowances: dict[str, int] = {}
        try:
            limits = read_quota(tenant.quota_page).limits
            allowances = {device.uuid: device.allowance for device in limits.devices}
            usage = read_usage(tenant.usage_page)
        except PageError as error:
            problem = str(error)
        supervised = tenant.is_supervised()
        hosts = host_pids(tenant.directory, usage.slots) if usage else {}
        members = tuple(sorted({*members, *hosts.values()}))
        if problem is None and supervised:
            problem = read_finding(tenant.directory)
        rows = []
        for index, share in enumerate(grant.devices):
            meter = self._meters.setdefault((tenant.name, share.uuid), _Meter())
            if usage is not None:
                meter.use.add(time.monotonic_ns(), usage, index)
            processes = self._device_processes(grant, share, seen)
            memory, cores = _measured(meter, tenant.name, members, processes)
            figures = usage.devices[index] if usage else None
            rows.append(
                Row(
                    tenant=tenant.name,
                    user=grant.user,
                    command=grant.command,
                    mode=grant.mode,
                    device_index=share.index,
                    device_uuid=share.uuid,
                    device_name=share.name,
                    simulated=grant.machine is not None,
                    memory_used_bytes=_charged(grant, figures),
                    memory_peak_bytes=figures.peak_bytes if figures else None,
                    memory_quota_bytes=share.memory_bytes,
                    cores_used_permille=meter.use.permille if usage else None,
                    cores_quota_permille=share.cores_permille,
                    allowance_permille=allowances.get(share.uuid),
                    refusals=figures.refusals if figures else None,
                    waits=figures.waits if figures else None,
                    processes=_slots(usage, hosts),
                    members=members,
                    device_memory_bytes=memory,
                    device_cores_permille=cores,
                    supervised=supervised,
                    problem=problem,
                    suspension=grant.suspension,
                    host_memory_bytes=grant.host_bytes,
                )
            )
        return rows

    def _device_processes(
        self,
        grant: Grant,
        share: DeviceGrant,
        seen: dict[tuple[str | None, str], list[DeviceProcess] | None],
    ) -> list[DeviceProcess] | None:
        source = self._source(grant.machine)
        if source is None:
            return None
        key = (grant.machine, share.uuid)
        if key not in seen:
            device = next((d for d in source.devices() if d.uuid == share.uuid), None)
            try:
                seen[key] = source.processes(device) if device else []
            except DeviceLostError:
                seen[key] = None
        return seen[key]

    def _source(self, machine: str | None) -> DeviceBackend | None:
        """The devices of `machine`, None if they can no longer be queried."""
        if machine not in self._sources:
            try:
                source = open_machine(Path(machine)) if machine else open_devices()
            except Exception:  # noqa: BLE001 - device figures are optional; N/A is a value
                source = None
            self._sources[machine] = source
        return self._sources[machine]


def _damaged(tenant: Tenant, members: tuple[int, ...], problem: str) -> Row:
    """The row of a tenant whose grant is unreadable, with only its name and processes."""
    try:
        usage = read_usage(tenant.usage_page)
    except PageError:
        usage = None
    return Row(
        tenant=tenant.name,
        user="",
        command=(),
        mode=NOT_KNOWN,
        device_index=None,
        device_uuid="",
        device_name="",
        simulated=False,
        memory_used_bytes=None,
        memory_peak_bytes=None,
        memory_quota_bytes=None,
        cores_used_permille=None,
        cores_quota_permille=None,
        allowance_permille=None,
        refusals=None,
        waits=None,
        processes=_slots(usage),
        members=members,
        device_memory_bytes=None,
        device_cores_permille=None,
        supervised=tenant.is_supervised(),
        problem=problem,
    )


def _slots(
    usage: UsageSnapshot | None, hosts: Mapping[int, int] = MappingProxyType({})
) -> tuple[tuple[int, str], ...]:
    """Pid and name of each slot's process, with the host pid if `hosts` has one for the slot."""
    if usage is None:
        return ()
    return tuple((hosts.get(slot.slot, slot.pid), slot.command) for slot in usage.slots)


def _measured(
    meter: _Meter, tenant: str, members: tuple[int, ...], processes: list[DeviceProcess] | None
) -> tuple[int | None, int | None]:
    """A tenant's memory and recent cores as the device itself measures them."""
    if processes is None:
        return None, None
    own = [p for p in processes if (p.tag == tenant if p.tag is not None else p.pid in members)]
    alive = [process for process in own if process.alive]
    amounts = [process.memory_bytes for process in alive if process.memory_bytes is not None]
    memory = None if alive and not amounts else sum(amounts)
    if all(process.busy_ns is not None for process in own) and own:
        meter.device_busy(own[0].at_ns, sum(process.busy_ns or 0 for process in own))
        return memory, meter.device_permille
    shares = [process.busy_permille for process in alive if process.busy_permille is not None]
    return memory, sum(shares) if shares else None
