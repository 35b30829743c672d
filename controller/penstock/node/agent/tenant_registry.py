"""Tenant registry: the tenants of this node, and the steps to add or remove one."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.model import PenstockError, listing
from penstock.node.tenants.recovery import grant_of_pages
from penstock.node.tenants.tenant_events import record_event
from penstock_shim.pages import PageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from penstock.node.agent.container_offers import ContainerOffers
    from penstock.node.agent.handshake_sockets import Handshakes
    from penstock.node.agent.managed_tenant import ManagedTenant
    from penstock.node.agent.node import Node
    from penstock.node.supervision.tenant_table import TenantTable
    from penstock.node.tenants.grant import Grant
    from penstock.node.tenants.tenant import Tenant
    from penstock_shim.time_slices import TimeSlices


@dataclass(eq=False)
class TenantRegistry:
    """All tenants of this node, whether or not the agent manages them.

    `lock` guards the registry. An order holds the lock from its checks to its last change; the
    reconcile loop holds it only to read.
    """

    node: Node
    tenant_table: TenantTable
    handshakes: Handshakes
    time_slices: TimeSlices
    offers: ContainerOffers

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        # Called in this order before an ended tenant is removed; some callers hold `lock`.
        self.at_end: Sequence[Callable[[ManagedTenant], None]] = ()
        self._managed: dict[str, ManagedTenant] = {}
        self._others: dict[str, Tenant] = {}  # supervised by their own `penstock run`, or damaged
        self._damaged: dict[str, str] = {}  # why the grant or the pages of a tenant are unusable
        # Derived from `_managed` and `_others`; None if these have changed.
        self._sorted: tuple[ManagedTenant, ...] | None = None  # by name
        self._directories: tuple[Path, ...] | None = None  # of all tenants
        self._by_directory: dict[Path, ManagedTenant] = {}

    def managed_tenants(self) -> tuple[ManagedTenant, ...]:
        """The managed tenants by name; the same tuple until a tenant is added or dropped."""
        with self.lock:
            if self._sorted is None:
                self._sorted = tuple(self._managed[name] for name in sorted(self._managed))
            return self._sorted

    def directories(self) -> tuple[tuple[Path, ...], Mapping[Path, ManagedTenant]]:
        """The directories of all tenants, and the managed tenants by directory.

        Returns the same objects until a tenant is added or dropped.
        """
        with self.lock:
            if self._directories is None:
                self._by_directory = {one.tenant.directory: one for one in self.managed_tenants()}
                others = (tenant.directory for tenant in self._others.values())
                self._directories = (*self._by_directory, *others)
            return self._directories, self._by_directory

    def find(self, name: str) -> ManagedTenant | None:
        """The managed tenant with this name, None if there is none."""
        with self.lock:
            return self._managed.get(name)

    def managed(self, name: str) -> ManagedTenant:
        """The managed tenant with this name. Raises `PenstockError` if there is none."""
        with self.lock:
            found = self._managed.get(name)
            if found is not None:
                return found
            if name in self._others and name in self._damaged:
                raise PenstockError(
                    f"tenant {name!r} is damaged", self._damaged[name],
                    f"end its processes, then remove {self._others[name].directory}",
                    reason="not-now",
                )  # fmt: skip
            if name in self._others:
                raise PenstockError(
                    f"tenant {name!r} is not managed by the agent",
                    "its penstock run was started before the agent and supervises it",
                    "change it with penstock quota set, as its own user, or wait for it to end",
                    reason="not-now",
                )
            only = listing(sorted(self._managed))
        raise PenstockError(
            f"no tenant {name!r} on {self.node.name}",
            f"it has only {only}" if only else "it has no tenants",
            "use the name of an existing tenant (see penstock ps)", reason="no-such-tenant",
        )  # fmt: skip

    def has(self, managed: ManagedTenant) -> bool:
        """Whether the agent still manages this tenant."""
        return self.find(managed.tenant.name) is managed

    def grants(self) -> list[Grant]:
        """All grants of this node; an unreadable grant is rebuilt from the tenant's pages."""
        with self.lock:
            grants = [managed.grant for managed in self._managed.values()]
            for tenant in self._others.values():
                try:
                    grants.append(tenant.grant())
                except PenstockError:  # noqa: PERF203 - one at a time is what is wanted
                    with contextlib.suppress(PageError, OSError):  # it ended or lost its pages
                        grants.append(self.grant_of_pages(tenant))
        return grants

    def grant_of_pages(self, tenant: Tenant) -> Grant:
        """A substitute for an unreadable grant. Raises `PageError`, OSError if it has no pages."""
        return grant_of_pages(tenant, self.node.machine, self.node.devices)

    def names(self) -> list[str]:
        """The names of all tenants on this node, managed or not."""
        with self.lock:
            return [*self._managed, *self._others]

    def add(self, managed: ManagedTenant) -> None:
        """Starts to manage a new or adopted tenant. The caller holds `lock`."""
        tenant = managed.tenant
        self._managed[tenant.name] = managed
        self._others.pop(tenant.name, None)
        self._sorted = self._directories = None
        self.tenant_table.granted(tenant.directory, managed.grant)
        self.handshakes.listen(tenant, managed.grant.uid)
        self._give_time_slices(managed)

    def changed(self, managed: ManagedTenant, grant: Grant) -> None:
        """Adopts a grant that was just rewritten. The caller holds `lock`."""
        managed.grant = grant
        self.tenant_table.granted(managed.tenant.directory, grant)

    def moved(self, managed: ManagedTenant) -> None:
        """Schedules the tenant's time slices on other devices, once its quota page names them."""
        self.time_slices.remove(managed.tenant.name)
        self._give_time_slices(managed)

    def offered(self, managed: ManagedTenant) -> None:
        """Moves the tenant's handshake socket to where its containers see it, after the offer.

        Raises:
            PenstockError: the tenant was revoked meanwhile; its offer is then withdrawn.
        """
        name = managed.tenant.name
        self.handshakes.listen(managed.tenant, managed.grant.uid)
        with self.lock:
            if name not in self._managed:
                self.handshakes.forget(name)
                self.offers.withdraw(name)
        if not self.has(managed) or managed.revocation is not None:
            raise PenstockError(
                f"tenant {name!r} was revoked while it was being created",
                "another request revoked it",
                "try again", reason="not-now",
            )  # fmt: skip

    def drop(self, managed: ManagedTenant) -> None:
        """Removes a tenant that has no processes left, with its directory.

        Raises:
            OSError: the directory cannot be removed; the tenant's share stays allocated.
        """
        for end in self.at_end:
            end(managed)
        name = managed.tenant.name
        with self.lock:
            if not self.has(managed):
                return
            managed.tenant.remove()
            del self._managed[name]
            self._damaged.pop(name, None)
            self._sorted = self._directories = None
            self.tenant_table.granted(managed.tenant.directory, None)
            self.time_slices.remove(name)
            self.handshakes.forget(name)
            self.offers.withdraw(name)
            managed.close()

    def withdraw_again(self) -> None:
        """Retries the withdrawals that failed for dropped tenants."""
        with self.lock:
            self.offers.withdraw_again(self._managed)

    def others(self) -> list[Tenant]:
        """The tenants supervised by their own `penstock run`, and those too damaged to manage."""
        with self.lock:
            return list(self._others.values())

    def add_other(self, tenant: Tenant) -> None:
        """Records a tenant that the agent does not manage."""
        with self.lock:
            self._others[tenant.name] = tenant
            self._directories = None

    def forget_other(self, tenant: Tenant) -> None:
        """Forgets a tenant that the agent did not manage, after its end."""
        with self.lock:
            self._others.pop(tenant.name, None)
            self._damaged.pop(tenant.name, None)
            self._directories = None

    def set_damage(self, tenant: Tenant, why: str | None) -> None:
        """Records why a tenant's grant or pages are unusable; None if they are usable again."""
        if why is None:
            self._damaged.pop(tenant.name, None)
            return
        if self._damaged.get(tenant.name) != why:
            record_event(tenant.directory, "damaged", reason=why)
        self._damaged[tenant.name] = why

    def damaged_tenants(self) -> int:
        """The number of tenants whose grant or pages are unusable."""
        return len(self._damaged)

    def close(self) -> None:
        """Closes the files of all tenants; the tenants themselves are unchanged."""
        self.time_slices.stop()
        self.handshakes.close()
        with self.lock:
            for managed in self._managed.values():
                managed.close()
            self._managed.clear()
            self.tenant_table.close()

    def _give_time_slices(self, managed: ManagedTenant) -> None:
        """Schedules time slices for the tenant; without them its quota is enforced less exactly."""
        try:
            self.time_slices.add(managed.tenant.name, managed.tenant.directory)
        except (PageError, OSError) as error:
            record_event(managed.tenant.directory, "no-turns", reason=str(error))
