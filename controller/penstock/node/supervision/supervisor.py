"""Supervisor of one tenant, which runs about ten times a second while the tenant has processes.

It renews the heartbeat, reaps the slots of dead processes, publishes how many tenants share the
devices, computes the elastic allowance, and records refusals. It acts only on its own tenant.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import os
import time
from typing import TYPE_CHECKING, Protocol

from penstock.model import PenstockError
from penstock.node.supervision.shim_bypass import Watch, belongs, own_processes, write_finding
from penstock.node.tenants.tenant_events import record_event
from penstock_shim.pages import DeviceLimit, Limits, PageError, QuotaWriter, UsagePage

if TYPE_CHECKING:
    from penstock.devices import DeviceBackend
    from penstock.node.supervision.tenant_table import CoTenant, Shared, TenantTable
    from penstock.node.tenants.grant import DeviceGrant, Grant
    from penstock.node.tenants.tenant import Tenant
    from penstock_shim.pages import UsageSnapshot

PERIOD_S = 0.1
PAGE_PERIOD_NS = 10_000_000_000
# How soon an idle tenant's page shows that the number of working tenants has changed.
IDLE_PERIOD_NS = 1_000_000_000
DEVICE_PERIOD_NS = 1_000_000_000  # how often the device's own figures are read


class Held(Protocol):
    """A temporary reduction of a tenant's limits below its grant, such as throttling."""

    def applied(self, limits: Limits) -> Limits:
        """Applies the reduction to limits, and returns the result."""


class Supervisor:
    """Supervises one tenant. `tick` runs one iteration; `close` releases the pages."""

    def __init__(
        self,
        tenant: Tenant,
        tenant_table: TenantTable,
        source: DeviceBackend | None = None,
        *,
        adopted: bool = False,
        reap_period_ns: int = 0,
    ) -> None:
        """Opens the quota page. The usage page may be unusable now, and repaired later.

        Args:
            tenant: The tenant to supervise.
            tenant_table: The table of all tenants, including this one and its co-tenants.
            source: Reports the device's own figures; None if they are not to be compared.
            adopted: Whether the tenant was supervised before, so that its earlier refusals are
            recorded.
            reap_period_ns: How often to look for dead processes in other pid namespaces, 0 for
                every iteration. The tenant table reports the dead processes in this one.

        Raises:
            PageError: the quota page is unusable.
        """
        self._reap_period_ns = reap_period_ns
        self._reaped_ns = 0
        self.tenant = tenant
        self._source = source
        self._watches: dict[str, Watch] = {}  # by device UUID
        self._compared_ns = 0
        self.finding: str | None = None  # the tenant's unaccounted use
        self._tenant_table = tenant_table
        self._quota = QuotaWriter.open(tenant.quota_page)
        self._usage: UsagePage | None = None
        self.usage: UsageSnapshot | None = None  # from the last iteration …
        self.page_problem: str | None = None  # … or why it cannot be read
        self.limits: Limits | None = None  # as last written by this supervisor
        self.held: Held | None = None  # the reduction below the grant now in force
        self._published: object = None
        self._published_ns = 0
        self._shares: list[Shared] = []  # as last published
        self._changes = -1  # `changes` of the tenant table that `_shares` reflects
        self._held: Held | None = None  # as last published
        self._supervised_ns = 0
        self._due_ns = 0  # when an iteration is due even without changes
        self._kept: CoTenant | None = None  # the table entry that renews the heartbeat
        self._refusals: dict[str, int] | None = None if adopted else {}
        self._asked_changes = 0
        self._asked: dict[str, int] = {}  # how often each function was refused
        self._damaged = False

    def tick(self) -> None:
        """Runs one iteration for a tenant supervised on its own; also samples its co-tenants."""
        now_ns = time.monotonic_ns()
        self._tenant_table.sample(now_ns)
        self.supervise(now_ns)

    def supervise(self, now_ns: int) -> None:
        """Runs one iteration, after `TenantTable.sample`.

        A damaged usage page is recorded once, and never stops the tenant.
        """
        me = self._tenant_table.of(self.tenant.directory)
        if me is None:
            return
        if self._kept is not me:
            self._quota.heartbeat()
            self._kept = me
            me.renew_heartbeat(self._quota)
        if not self._is_due(me, now_ns):
            return
        self._supervised_ns, self._held = now_ns, self.held
        self.newest()
        if self.page_problem is not None:
            self._damage(self.page_problem)
        elif self.usage is not None:
            self._reap(me, self.usage, now_ns)
        if me.grant is None:
            return
        if self.usage is not None:
            self._record_refusals(me.grant, self.usage)
        self._publish(me, me.grant, now_ns)
        if self._source is not None and now_ns - self._compared_ns >= DEVICE_PERIOD_NS:
            self._compared_ns = now_ns
            self._compare(me.grant)
        is_namespaced = self.usage and any(
            self._tenant_table.namespaced.watches(s) for s in self.usage.slots
        )
        period_ns = (
            self._reap_period_ns if is_namespaced or not self._reap_period_ns else PAGE_PERIOD_NS
        )
        self._due_ns = now_ns + (min(period_ns, DEVICE_PERIOD_NS) if self._source else period_ns)

    def newest(self) -> UsageSnapshot | None:
        """The usage page as of the last iteration, which is also stored in `usage`.

        If the page has become unreadable, it is the last good snapshot, and `page_problem` has the
        reason.
        """
        me = self._tenant_table.of(self.tenant.directory)
        if me is not None:
            self.usage, self.page_problem = me.newest(), me.problem
        return self.usage

    def _is_due(self, me: CoTenant, now_ns: int) -> bool:
        if me.has_changed or now_ns >= self._due_ns or self.held != self._held:
            return True
        changes = self._tenant_table.changes
        if me.grant is None or changes == self._changes:
            return False
        if all(map(operator.is_, self._shares, self._shares_of(me.grant))):
            self._changes = changes
            return False
        return me.part.active or now_ns - self._supervised_ns >= IDLE_PERIOD_NS

    def _shares_of(self, grant: Grant) -> list[Shared]:
        return [self._tenant_table.shared(grant.machine, d.uuid) for d in grant.devices]

    def close(self) -> None:
        """Releases the pages, which stay as they are."""
        self._tenant_table.close_quota(self._quota)
        if self._usage is not None:
            self._usage.close()

    def _reap(self, me: CoTenant, usage: UsageSnapshot, now_ns: int) -> None:
        """Reclaims the resources held by dead processes."""
        due = bool(usage.slots) and now_ns - self._reaped_ns >= self._reap_period_ns
        if not due and not me.part.gone:
            return
        self._reaped_ns = now_ns
        try:
            dead = self._tenant_table.namespaced.dead(usage.slots, now_ns) if due else []
            for slot in dead:
                self._quota.mark_dead(slot.slot, slot.owner)
            if dead or me.part.gone or not self._reap_period_ns:
                self._page().reap()
        except PageError as error:
            self._damage(str(error))

    def _page(self) -> UsagePage:
        """The usage page, opened at first use. Raises `PageError` if its user prevents that."""
        if self._usage is None:
            self._usage = UsagePage.open(self.tenant.usage_page)
        return self._usage

    def _damage(self, reason: str) -> None:
        if not self._damaged:
            record_event(self.tenant.directory, "damaged", reason=reason)
        self._damaged = True

    def _record_refusals(self, grant: Grant, usage: UsageSnapshot) -> None:
        if self._refusals is None:
            self._refusals = {
                device.uuid: usage.devices[index].refusals
                for index, device in enumerate(grant.devices)
            }
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
        """Records the driver functions that a program requested and the shim refused."""
        try:
            names = self._page().asked().names
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
                    reason="it may take memory or device time, and this release does not know it; "
                    "use a newer release that does, or a policy with allowUnknown",
                )
                self._asked[one.name] = one.requests

    def _compare(self, grant: Grant) -> None:
        """Compares the device's own figures for this tenant with what was charged."""
        if self._source is None:
            return
        try:
            before = self._page().snapshot()
            seen = {d.uuid: self._source.processes(d) for d in self._source.devices()}
            usage = self._page().snapshot()
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
            found = self._watches.setdefault(device.uuid, Watch()).check(
                time.monotonic_ns(),
                usage,
                index,
                own,
                # A charge precedes its allocation, and is reversed after the memory is released.
                charged_bytes=max(
                    before.devices[index].total_bytes, usage.devices[index].total_bytes
                ),
                context_bytes=device.context_bytes,
                allowed_permille=max(device.cores_permille, allowed.get(device.uuid, 0)),
            )
            if found:
                findings.append(f"device {device.index}: {found}")
        finding = "; ".join(findings) or None
        if finding and self.finding is None:
            record_event(directory, "uncharged", reason=finding)
        if finding != self.finding:
            write_finding(directory, finding)
        self.finding = finding

    def _publish(self, me: CoTenant, grant: Grant, now_ns: int) -> None:
        """Writes grant, sharers and allowances into the page if they have changed."""
        shares = self._shares_of(grant)
        name = self.tenant.name
        wanted = (
            me.stamp,
            [(one.sharers, one.busy_sharers, one.allowances.get(name)) for one in shares],
            self.held,
        )
        # Another process may have written to the page, so it is checked periodically, even without
        # changes.
        self._shares = shares
        if wanted == self._published and now_ns - self._published_ns < PAGE_PERIOD_NS:
            return

        def edit(limits: Limits) -> Limits:
            # An order writes the grant, then the page. The grant is read here under the page's
            # lock, so it is never older than the page. An order is therefore never undone here, and
            # is completed if the process that carried it out was killed half-way.
            with contextlib.suppress(OSError, PenstockError):  # lost or damaged: use the last grant
                me.refresh()
            grant = me.grant
            if grant is None:
                return limits
            shares = tuple(
                self._shared(limit, device, grant.machine)
                for limit, device in zip(limits.devices, grant.devices, strict=True)
            )
            whole = dataclasses.replace(
                limits,
                devices=shares,
                mode=grant.mode,
                suspended=grant.suspended,
                released=grant.memory != "device",
            )
            return self.held.applied(whole) if self.held else whole

        limits = self._quota.limits
        self.limits = edit(limits)
        if self.limits != limits:
            self._quota.change(edit)
        self._published, self._published_ns = wanted, now_ns

    def _shared(self, limit: DeviceLimit, device: DeviceGrant, machine: str | None) -> DeviceLimit:
        shared = self._tenant_table.shared(machine, device.uuid)
        allowance = shared.allowances.get(self.tenant.name, device.cores_permille)
        return dataclasses.replace(
            limit,
            uuid=device.uuid,
            memory_bytes=device.memory_bytes,
            cores_permille=device.cores_permille,
            sharers=shared.sharers,
            busy_sharers=shared.busy_sharers,
            allowance_permille=allowance,
        )
