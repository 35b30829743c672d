"""The supervisor of one tenant: about ten times a second, while the tenant has processes.

It renews the heartbeat, reaps slots of dead processes, tells the tenant how many share its devices,
works out its elastic allowance, and writes down refusals. It decides for its own tenant only.
"""

from __future__ import annotations

import dataclasses
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.node.elastic import Demand, allowances
from penstock.node.events import record_event
from penstock.node.grant import FILE as GRANT_FILE
from penstock.node.grant import DeviceGrant, Grant, read_grant
from penstock.node.outsiders import Outsiders
from penstock.node.tenant import Tenant, tenants_of
from penstock.node.uncharged import Watch, belongs, own_processes, write_finding
from penstock.node.use import RecentUse
from penstock_shim.pages import DeviceLimit, Limits, PageError, QuotaWriter, UsagePage, read_usage

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.devices import DeviceSource
    from penstock.node.state import State

PERIOD_S = 0.1
DEVICE_PERIOD_NS = 1_000_000_000  # how often the device's own figures are asked for


@dataclass
class _Neighbour:
    """Another tenant as last seen, with its grant kept until the file changes."""

    stamp: tuple[int, int] = (0, 0)
    grant: Grant | None = None
    use: dict[str, RecentUse] = field(default_factory=dict)  # by device UUID


class Supervisor:
    """Looks after one tenant. `tick` does one round; `close` lets go of the pages."""

    def __init__(self, state: State, tenant: Tenant, source: DeviceSource | None = None) -> None:
        """`source` tells the device's own figures; without it nothing is compared with them."""
        self.tenant = tenant
        self._source = source
        self._watches: dict[str, Watch] = {}  # by device UUID
        self._looked_at_ns = 0
        self._finding: str | None = None
        self._state = state
        self._quota = QuotaWriter.open(tenant.quota_page)
        self._usage = UsagePage.open(tenant.usage_page)
        self._neighbours: dict[Path, _Neighbour] = {}
        self._refusals: dict[str, int] = {}
        self._asked_changes = 0
        self._asked: dict[str, int] = {}  # refused names, how often
        self._damaged = False
        self._outsiders = Outsiders()

    def tick(self) -> None:
        """One round. A usage page that was damaged is recorded once and never stops the tenant."""
        now_ns = time.monotonic_ns()
        self._quota.heartbeat()
        try:
            self._mark_dead_outsiders()
            self._usage.reap()
        except PageError as error:
            self._damage(str(error))
        self._look_around(now_ns)
        me = self._neighbours.get(self.tenant.directory)
        if me is None or me.grant is None:
            return
        self._record_refusals(me.grant)
        self._publish(now_ns)
        if now_ns - self._looked_at_ns >= DEVICE_PERIOD_NS:
            self._looked_at_ns = now_ns
            self._compare(me.grant)

    def close(self) -> None:
        """Lets go of the pages; they stay as they are."""
        self._quota.close()
        self._usage.close()

    def _mark_dead_outsiders(self) -> None:
        for slot in self._outsiders.dead(self._usage.snapshot().slots):
            self._quota.mark_dead(slot.slot, slot.owner)

    def _damage(self, reason: str) -> None:
        if not self._damaged:
            record_event(self.tenant.directory, "damaged", reason=reason)
        self._damaged = True

    def _look_around(self, now_ns: int) -> None:
        """Takes in grants and recent use of every tenant, this one included."""
        seen = {tenant.directory for tenant in tenants_of(self._state)}
        for gone in self._neighbours.keys() - seen:
            del self._neighbours[gone]
        for directory in seen:
            neighbour = self._neighbours.setdefault(directory, _Neighbour())
            try:
                self._refresh(directory, neighbour)
                usage = read_usage(directory / "usage")
            except (OSError, PageError, PenstockError):
                continue  # about to end, or damaged: what was known of it stands
            if neighbour.grant is None:
                continue
            for index, device in enumerate(neighbour.grant.devices):
                neighbour.use.setdefault(device.uuid, RecentUse()).add(now_ns, usage, index)

    @staticmethod
    def _refresh(directory: Path, neighbour: _Neighbour) -> None:
        """Reads the grant again when its file was replaced."""
        found = (directory / GRANT_FILE).stat()
        if neighbour.stamp != (found.st_ino, found.st_mtime_ns):
            neighbour.grant = read_grant(directory)
            neighbour.stamp = (found.st_ino, found.st_mtime_ns)

    def _record_refusals(self, grant: Grant) -> None:
        try:
            usage = self._usage.snapshot()
        except PageError as error:
            self._damage(str(error))
            return
        for index, device in enumerate(grant.devices):
            figures = usage.devices[index]
            before = self._refusals.get(device.uuid, 0)
            if figures.refusals > before:
                record_event(
                    self.tenant.directory,
                    "deny",
                    device=device.uuid,
                    count=figures.refusals - before,
                    last_bytes=figures.refused_bytes,
                    used_bytes=figures.total_bytes,
                    limit_bytes=device.memory_bytes,
                    reason="allocation would exceed the memory quota",
                )
            self._refusals[device.uuid] = figures.refusals
        if usage.asked_changes != self._asked_changes:
            self._asked_changes = usage.asked_changes
            self._record_refused_names()

    def _record_refused_names(self) -> None:
        """Functions that a program asked the driver for and was told "not found" by the shim."""
        try:
            names = self._usage.asked().names
        except PageError as error:
            self._damage(str(error))
            return
        for one in names:
            before = self._asked.get(one.name, 0)
            if one.kind == "refused" and one.requests > before:
                record_event(
                    self.tenant.directory,
                    "function-refused",
                    function=one.name,
                    count=one.requests - before,
                    reason="it may take memory or device time and this release does not know it; "
                    "a newer release may, and a policy may say allowUnknown",
                )
                self._asked[one.name] = one.requests

    def _compare(self, grant: Grant) -> None:
        """Holds the device's own figures of this tenant against what was charged."""
        if self._source is None:
            return
        try:
            before = self._usage.snapshot()
            seen = {d.uuid: self._source.processes(d) for d in self._source.devices()}
            usage = self._usage.snapshot()
        except (OSError, PageError, PenstockError) as error:
            if isinstance(error, PageError):
                self._damage(str(error))
            return
        directory, supervisor = self.tenant.directory, os.getpid()
        allowed = {limit.uuid: limit.allowance for limit in self._quota.limits.devices}
        findings = []
        for index, device in enumerate(grant.devices):
            own = own_processes(
                seen.get(device.uuid, []),
                self.tenant.name,
                lambda pid: belongs(pid, directory, supervisor),
            )
            found = self._watches.setdefault(device.uuid, Watch()).look(
                time.monotonic_ns(),
                usage,
                index,
                own,
                # What is charged goes before on the way up and behind on the way down.
                charged_bytes=max(
                    before.devices[index].total_bytes, usage.devices[index].total_bytes
                ),
                context_bytes=device.context_bytes,
                allowed_permille=max(device.cores_permille, allowed.get(device.uuid, 0)),
            )
            if found:
                findings.append(f"device {device.index}: {found}")
        finding = "; ".join(findings) or None
        if finding and self._finding is None:
            record_event(directory, "uncharged", reason=finding)
        if finding != self._finding:
            write_finding(directory, finding)
        self._finding = finding

    def _publish(self, now_ns: int) -> None:
        """Writes what was granted, sharers and allowances into the page when they changed."""
        me = self._neighbours[self.tenant.directory]

        def edit(limits: Limits) -> Limits:
            # A resize writes the grant, then the page. Read under the page's lock, the grant is
            # never older than the page: a resize is never undone here, and is finished if its
            # command was killed half-way.
            self._refresh(self.tenant.directory, me)
            grant = me.grant
            if grant is None:
                return limits
            shares = tuple(
                self._shared(limit, device, grant, now_ns)
                for limit, device in zip(limits.devices, grant.devices, strict=True)
            )
            return dataclasses.replace(limits, devices=shares, mode=grant.mode)

        limits = self._quota.limits
        if edit(limits) != limits:
            self._quota.change(edit)

    def _shared(
        self, limit: DeviceLimit, device: DeviceGrant, grant: Grant, now_ns: int
    ) -> DeviceLimit:
        demands = []
        for directory, neighbour in self._neighbours.items():
            other = neighbour.grant
            if other is None or other.machine != grant.machine:
                continue
            share = next((d for d in other.devices if d.uuid == limit.uuid), None)
            use = neighbour.use.get(limit.uuid)
            if share is None or use is None:
                continue
            demand = Demand(
                tenant=directory.name,
                cores_permille=share.cores_permille,
                elastic=other.mode == "elastic",
                used_permille=use.permille,
                asking=use.is_asking(now_ns),
                active=use.is_active(now_ns),
            )
            demands.append(demand)
        return dataclasses.replace(
            limit,
            memory_bytes=device.memory_bytes,
            cores_permille=device.cores_permille,
            sharers=max(1, len(demands)),
            busy_sharers=sum(demand.active for demand in demands),
            allowance_permille=allowances(demands).get(self.tenant.name, device.cores_permille),
        )
