"""Suspension of a tenant by an order: its state, and the change of grant and quota page."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.node.tenants.grant import write_grant
from penstock.node.tenants.tenant import open_quota
from penstock_shim.pages import PageError

if TYPE_CHECKING:
    from penstock.node.agent.managed_tenant import ManagedTenant
    from penstock.node.agent.tenant_registry import TenantRegistry
    from penstock.node.supervision.supervisor import Held
    from penstock.node.tenants.grant import Grant
    from penstock_shim.pages import Limits


@dataclass(frozen=True)
class Suspension:
    """How far a tenant is suspended by an order.

    `state`: "launches" if only launches wait; "releasing", "released" or "restoring" say where its
    memory is; empty if it runs. `problem`: why its memory was not released, or is not restored yet.
    """

    state: str
    host_bytes: int
    problem: str


def put_suspension(
    registry: TenantRegistry,
    managed: ManagedTenant,
    after: Grant,
    *,
    idle_since_ns: int | None = None,
) -> None:
    """Puts a grant in force that differs in its suspension. The caller holds the registry's lock.

    `idle_since_ns`: CLOCK_MONOTONIC time at which none of its work was on a device, for its shim.

    Raises:
        PenstockError: the quota page is damaged; nothing was changed.
        OSError: the grant cannot be written; nothing was changed.
    """
    held = managed.supervisor.held
    has_moved = uuids_of(after) != uuids_of(managed.grant)
    with open_quota(managed.tenant) as page:
        if after != managed.grant:
            write_grant(managed.tenant.directory, after)
            registry.changed(managed, after)
        # The grant on disk decides. If the page cannot be written now, the supervisor retries.
        with contextlib.suppress(PageError):
            page.change(lambda limits: _with_order(limits, held, after, idle_since_ns))
    if has_moved:
        registry.moved(managed)


def uuids_of(grant: Grant) -> list[str]:
    """The UUIDs of the grant's devices, in its order."""
    return [share.uuid for share in grant.devices]


def _with_order(limits: Limits, held: Held | None, grant: Grant, idle_ns: int | None) -> Limits:
    """The limits with the requested suspension; the holds of enforcement stay in force."""
    devices = limits.devices
    if grant.memory != "device":  # its devices may be others once it is restored
        devices = tuple(
            dataclasses.replace(limit, uuid=share.uuid)
            for limit, share in zip(devices, grant.devices, strict=True)
        )
    ordered = dataclasses.replace(
        limits,
        devices=devices,
        suspended=grant.suspended,
        released=grant.memory != "device",
        released_ns=limits.released_ns if idle_ns is None else idle_ns,
    )
    return held.applied(ordered) if held else ordered
