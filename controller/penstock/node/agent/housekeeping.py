"""Housekeeping: adopts tenants that have no supervisor, and removes tenants that have ended."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.devices.aside import FILES
from penstock.model import PenstockError
from penstock.node.agent.managed_tenant import ManagedTenant
from penstock.node.enforcement.process import is_alive
from penstock.node.tenants.grant import read_grant
from penstock.node.tenants.lock import take
from penstock.node.tenants.tenant import ENTERED, SUPERVISOR_LOCK, has_processes, tenants_of
from penstock.node.tenants.tenant_events import record_event
from penstock.node.tenants.tenant_processes import (
    TENANT_VARIABLE,
    environments,
    members_of,
    of_user,
)
from penstock_shim.pages import PageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.node.agent.memory_release import MemoryReleases
    from penstock.node.agent.node import Node
    from penstock.node.agent.revocation import Revocations
    from penstock.node.agent.tenant_registry import TenantRegistry
    from penstock.node.enforcement import Enforcer
    from penstock.node.tenants.tenant import Tenant

PERIOD_NS = 1_000_000_000
ENDS_FOR_NS = 50_000_000  # time budget per iteration, as one user's many tenants may end at once


@dataclass(eq=False)
class Housekeeping:
    """Adopts tenants at the start, and once a second updates the registry to what is on disk."""

    node: Node
    registry: TenantRegistry
    revocations: Revocations
    releases: MemoryReleases
    enforcer: Enforcer
    _ran_ns: int = 0

    def adopt_all(self) -> None:
        """Adopts the tenants in the state directory. The caller holds the registry's lock."""
        for tenant in tenants_of(self.node.state):
            if not self._adopt(tenant):
                self.registry.add_other(tenant)

    def run(self, managed_tenants: Sequence[ManagedTenant], now_ns: int) -> None:
        """Runs one iteration if it is due."""
        if now_ns - self._ran_ns < PERIOD_NS:
            return
        self._ran_ns = now_ns
        self._end_all(managed_tenants, now_ns)
        self.registry.withdraw_again()
        for managed in managed_tenants:
            if managed.damage is not None:
                self._use_if_repaired(managed)
        self._adopt_others()

    def end_if_over(self, name: str) -> None:
        """Removes an ended tenant at once, to free its name. Raises OSError if that fails."""
        with self.registry.lock:
            managed = self.registry.find(name)
            if (
                managed is not None
                and managed.revocation is None
                and managed.may_end(time.monotonic_ns())
                and not has_processes(managed.tenant, uid=managed.grant.uid)
                and not self._has_members(managed)
            ):
                self.registry.drop(managed)

    def _end_all(self, managed_tenants: Sequence[ManagedTenant], now_ns: int) -> None:
        """Removes as many ended tenants as fit into one iteration; the next iteration continues."""
        over = [
            managed
            for managed in managed_tenants
            if managed.revocation is None and managed.may_end(now_ns) and not managed.holds_slots()
        ]
        if not over:
            return
        found = environments(TENANT_VARIABLE)
        until_ns = time.monotonic_ns() + ENDS_FOR_NS
        for managed in over:
            pids = of_user(members_of(found, managed.tenant.directory), managed.grant.uid)
            if pids or self._has_members(managed):
                continue
            if time.monotonic_ns() > until_ns:
                self._ran_ns = 0
                return
            with contextlib.suppress(OSError):  # the iteration in a second tries again
                self.registry.drop(managed)

    def _has_members(self, managed: ManagedTenant) -> bool:
        """Whether enforcement knows a live process of the tenant, whatever its environment says."""
        return any(is_alive(one) for one in self.enforcer.members(managed.tenant.name))

    def _adopt_others(self) -> None:
        """Adopts tenants whose `penstock run` was killed, and forgets other tenants that ended."""
        with self.registry.lock:
            for tenant in self.registry.others():
                if not tenant.directory.exists():
                    self.registry.forget_other(tenant)
                elif not tenant.is_supervised():
                    self._adopt(tenant)

    def _adopt(self, tenant: Tenant) -> bool:
        """Adopts an existing tenant; returns False if it has a supervisor or is too damaged."""
        try:
            lock = take(tenant.directory / SUPERVISOR_LOCK)
        except (BlockingIOError, FileNotFoundError):
            return False
        with contextlib.suppress(OSError):
            if tenant.directory.stat().st_mode & 0o044:  # the mode that earlier releases set
                FILES.own(tenant.directory, ENTERED)
        damage = None
        try:
            try:
                grant = read_grant(tenant.directory)
            except PenstockError as error:
                damage = f"{error.what}: {error.why}"
                grant = self.registry.grant_of_pages(tenant)
            managed = ManagedTenant(
                tenant, grant, lock, self.registry.tenant_table, adopted=True, damage=damage
            )
        except (PenstockError, PageError, OSError) as error:
            os.close(lock)
            self.registry.set_damage(tenant, f"{damage}; {error}" if damage else str(error))
            return False
        self.registry.set_damage(tenant, damage)
        self.registry.add(managed)
        record_event(tenant.directory, "adopted", by=self.node.name)
        self.revocations.resume_earlier(managed)
        self.releases.resume_earlier(managed)
        return True

    def _use_if_repaired(self, managed: ManagedTenant) -> None:
        try:
            grant = read_grant(managed.tenant.directory)
        except PenstockError:
            return
        with self.registry.lock:
            same = [share.uuid for share in grant.devices] == [
                share.uuid for share in managed.grant.devices
            ]
            if same and self.registry.has(managed):
                managed.damage = None
                self.registry.set_damage(managed.tenant, None)
                self.registry.changed(managed, grant)
                record_event(managed.tenant.directory, "mended", by=self.node.name)
                self.releases.resume_earlier(managed)
