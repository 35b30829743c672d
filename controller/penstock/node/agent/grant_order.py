"""Grant order: creates a tenant for a caller, from the request to the response."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.devices import find_devices
from penstock.node.admission.admit import plan
from penstock.node.agent.managed_tenant import ManagedTenant
from penstock.node.agent.pool_tenants import check_labels
from penstock.node.agent.revocation import check_not_ending
from penstock.node.containers import companions
from penstock.node.tenants.environment import tenant_variables
from penstock.node.tenants.pool_record import not_pools
from penstock.node.tenants.tenant import create_tenant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.node.admission.admit import Request
    from penstock.node.agent.container_offers import ContainerOffers
    from penstock.node.agent.device_task import DeviceTask
    from penstock.node.agent.grant_rate import GrantRate
    from penstock.node.agent.housekeeping import Housekeeping
    from penstock.node.agent.node import Node
    from penstock.node.agent.page_sizes import PageSizes
    from penstock.node.agent.principal import Principal
    from penstock.node.agent.revocation import Revocations
    from penstock.node.agent.tenant_registry import TenantRegistry
    from penstock.node.agent.user_limits import Bounds
    from penstock.node.tenants.grant import Grant

MOST_CUTS, CUT_AGAIN_S = 80, 0.05  # tries to free space for one grant by cutting grown pages


@dataclass(frozen=True)
class Granted:
    """The response to the owner of a new tenant."""

    managed: ManagedTenant
    notes: tuple[str, ...]
    variables: dict[str, str]  # environment for a program on this machine; empty for a container
    cdi_devices: tuple[str, ...]  # for a container; the tenant's own device comes first


@dataclass(frozen=True)
class GrantOrder:
    """Creates tenants on request, from any thread. The methods stand in the order they run."""

    node: Node
    bounds: Bounds
    rate: GrantRate
    devices: DeviceTask
    pages: PageSizes
    registry: TenantRegistry
    offers: ContainerOffers
    revocations: Revocations
    housekeeping: Housekeeping

    def grant(self, request: Request, caller: Principal) -> Granted:
        """Creates a tenant for the caller; a repeated request id returns the same tenant.

        Raises:
            PenstockError: the tenant does not fit, exists already, or is not allowed.
        """
        request = _identify(request, caller)
        request = self._bound(request, caller)
        while True:
            managed, notes, is_new = self._find_or_create_with_room(request, caller)
            with managed.answering:
                if not self.registry.has(managed):
                    continue  # the thread that created it could not offer it, and removed it
                try:
                    answer = self._answer(managed, request, notes)
                except BaseException:
                    if is_new and not managed.is_answered:
                        self._take_back(managed)
                    raise
                managed.is_answered = True
                return answer

    def _bound(self, request: Request, caller: Principal) -> Request:
        """Applies the node's limits for users. Raises `PenstockError` if they forbid it."""
        if request.oversubscribe:
            caller.check_is_admin("to oversubscribe a device")
        check_labels(request.labels, caller)
        self.bounds.check(request, caller)
        return self.bounds.bounded(request)

    def _find_or_create_with_room(
        self, request: Request, caller: Principal
    ) -> tuple[ManagedTenant, list[str], bool]:
        """Finds or creates the tenant; retries on a full disk while grown pages are being cut."""
        for _ in range(MOST_CUTS):
            with _no_room():
                return self._find_or_create(request, caller)
            self.pages.check()
            if not self.pages.has_cut():
                break
            time.sleep(CUT_AGAIN_S)
        return self._find_or_create(request, caller)

    def _find_or_create(
        self, request: Request, caller: Principal
    ) -> tuple[ManagedTenant, list[str], bool]:
        """The tenant of this request, notes for its owner, and whether the tenant is new."""
        with self.registry.lock:
            if request.name is not None:
                self.housekeeping.end_if_over(request.name)
            managed = self._find(request)
            if managed is not None:
                return managed, [], False
            grant, notes = self._plan(request, caller)
            managed = self._create(request, grant, caller)
            self.registry.add(managed)
            return managed, notes, True

    def _find(self, request: Request) -> ManagedTenant | None:
        """The tenant that an earlier call with this request id created, None if there is none."""
        managed = self.registry.find(request.name or "")
        if managed is None:
            return None
        check_not_ending(managed)
        before = managed.grant
        same = before.request_id == request.request_id and before.uid == request.uid
        return managed if request.request_id and same else None

    def _plan(self, request: Request, caller: Principal) -> tuple[Grant, list[str]]:
        """The grant, on healthy devices, within free capacity and within the caller's limits."""
        if not caller.is_admin:
            self.rate.take(caller.person)
        devices = self.node.devices
        self.devices.check(find_devices(devices, request.devices))
        candidates = find_devices(devices, request.candidates) if request.candidates else devices
        if not request.devices:
            owned = self.node.pool_devices
            candidates = self.devices.usable(not_pools(candidates, owned))
        grants = self.registry.grants()
        self.bounds.check_number(caller, grants, self.pages.held_by(caller.person))
        left = self.bounds.left_to(caller, self.node, grants)
        grant, notes = plan(
            request,
            devices,
            grants,
            machine=self.node.machine,
            candidates=candidates,
            names=self.registry.names(),
            most=left,
            owned=() if caller.is_pool else self.node.pool_devices,
        )
        self.bounds.check_total(caller, grant, left)
        return grant, notes

    def _create(self, request: Request, grant: Grant, caller: Principal) -> ManagedTenant:
        """Creates the tenant on disk; leaves nothing there on failure."""
        in_container = request.container  # the driver's libraries lie elsewhere in a container
        libraries = self.offers.libraries() if in_container else self.node.source.libraries()
        tenant, lock = create_tenant(self.node.state, grant, libraries)
        try:
            return ManagedTenant(
                tenant, grant, lock, self.registry.tenant_table, caller=caller.process
            )
        except BaseException:
            os.close(lock)
            tenant.remove()
            raise

    def _answer(self, managed: ManagedTenant, request: Request, notes: list[str]) -> Granted:
        """Offers the tenant to containers or collects its variables; repeatable after an error.

        Raises:
            PenstockError: the tenant cannot be offered, or was revoked meanwhile.
            OSError: a file of the tenant cannot be read or written.
        """
        variables: dict[str, str] = {}
        cdi_devices: tuple[str, ...] = ()
        if request.container:
            cdi_devices = self._offer(managed)
        else:
            variables = tenant_variables(
                self.node.state, managed.tenant, managed.grant, self.node.source
            )
        return Granted(managed, tuple(notes), variables, cdi_devices)

    def _offer(self, managed: ManagedTenant) -> tuple[str, ...]:
        """Offers the tenant to container runtimes; returns the names of its CDI devices."""
        device = self.offers.offer(managed.tenant)
        if device is None:
            return ()
        self.registry.offered(managed)
        return (device, *companions(managed.tenant))

    def _take_back(self, managed: ManagedTenant) -> None:
        """Removes a tenant that was never reported to its owner."""
        try:
            self.registry.drop(managed)
        except OSError:
            with self.registry.lock:
                self.revocations.revoke(managed, 0)


def _identify(request: Request, caller: Principal) -> Request:
    """The request with the caller's identity as the owner of the tenant."""
    if caller.uid is not None:
        return dataclasses.replace(
            request, user=caller.name, uid=caller.uid, owner_uid=caller.owner_uid
        )
    return request if request.user is not None else dataclasses.replace(request, user=caller.name)


@contextlib.contextmanager
def _no_room() -> Iterator[None]:
    """Suppresses the errors that report a full file system or an exhausted disk quota."""
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
