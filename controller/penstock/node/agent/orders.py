"""Orders that change existing tenants (resize, suspend, revoke, …) or the driver."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.devices import find_devices
from penstock.model import PenstockError, human_memory
from penstock.node.admission.resize import grows, resized
from penstock.node.agent.pool_tenants import check_may_order
from penstock.node.agent.resume_place import check_room, placed
from penstock.node.agent.revocation import check_not_ending
from penstock.node.agent.suspension import put_suspension
from penstock.node.tenants.pool_record import check_not_pools
from penstock.node.tenants.tenant import change_grant
from penstock.node.tenants.tenant_events import record_event
from penstock_shim.pages import PageError, read_usage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.devices import Device
    from penstock.node.admission.resize import Resize
    from penstock.node.agent.ending import Ended
    from penstock.node.agent.managed_tenant import ManagedTenant
    from penstock.node.agent.memory_release import MemoryReleases
    from penstock.node.agent.node import Node
    from penstock.node.agent.principal import Principal
    from penstock.node.agent.revocation import Revocation, Revocations
    from penstock.node.agent.tenant_registry import TenantRegistry
    from penstock.node.agent.user_limits import Bounds
    from penstock.node.enforcement import Enforcer
    from penstock.node.tenants.grant import Grant


@dataclass(frozen=True)
class Orders:
    """Carries out orders on tenants and the driver. Every method may be called from any thread."""

    node: Node
    bounds: Bounds
    registry: TenantRegistry
    enforcer: Enforcer
    revocations: Revocations
    releases: MemoryReleases
    report: Callable[..., None]

    def resize(
        self, name: str, change: Resize, caller: Principal
    ) -> tuple[ManagedTenant, list[str]]:
        """Changes a tenant's quota; the new quota applies from the next launch and allocation on.

        Raises:
            PenstockError: the new quota does not fit, is not allowed, or is less than the memory
                that a program holds.
        """
        change.check()
        if change.oversubscribe:
            caller.check_is_admin("to oversubscribe a device")
        if change.accounted:
            caller.check_is_admin("to set what a scheduler accounts for")
        with self.registry.lock:
            managed = self._changeable(name, caller)
            if managed.grant.memory != "device":
                raise PenstockError(
                    f"the quota of tenant {name!r} was not changed",
                    "its device memory is released, or on the way",
                    f"resume it first: penstock resume {name}", reason="not-now",
                )  # fmt: skip
            others = [grant for grant in self.registry.grants() if grant.tenant != name]
            after, notes = resized(managed.grant, change, lambda: others)
            if grows(managed.grant, after):
                caller.check_may_lift(managed.grant, "enlarged")
                left = self.bounds.left_to(caller, self.node, others)
                self.bounds.check_total(caller, after, left, managed.grant)
            if not change.force:
                _check_in_use(managed, after, self.enforcer)
            notes += change_grant(managed.tenant, after)
            if not change.force:
                try:  # usage may have grown until the quota was written, but cannot grow now
                    _check_in_use(managed, after, self.enforcer)
                except PenstockError:
                    change_grant(managed.tenant, managed.grant)
                    raise
            self.registry.changed(managed, after)
        return managed, notes

    def release_driver(self, caller: Principal, reason: str) -> None:
        """Closes the driver until `reopen_driver` is called, so that its modules can be unloaded.

        Until then the devices count as lost: nothing is granted on them, but tenants can still be
        ended. A restarted agent opens the driver again.
        """
        caller.check_is_admin("to release the driver")
        if not self.node.source.released:
            self.report("driver-released", by=caller.name, reason=reason)
        self.node.source.release(reason or "the driver was released")

    def reopen_driver(self, caller: Principal) -> None:
        """Reopens the driver; working devices can be granted again within a second."""
        caller.check_is_admin("to reopen the driver")
        if self.node.source.released:
            self.report("driver-reopened", by=caller.name)
        self.node.source.reopen()

    def suspend(
        self, name: str, caller: Principal, reason: str = "", *, release_memory: bool = False
    ) -> ManagedTenant:
        """Blocks launches until `resume`. Kernels already on the device run to completion.

        `release_memory`: its device memory moves to the host as well, and its shares are free for
        others meanwhile; `ManagedTenant.suspension` says how far that is.

        Raises:
            PenstockError: the tenant is not the caller's, or the host has no room for its memory.
            OSError: the suspension cannot be recorded.
        """
        with self.registry.lock:
            managed = self._changeable(name, caller)
            before = managed.grant
            by = ""
            if caller.is_admin and caller.uid != before.uid:
                by = caller.name
            elif before.suspended:  # an administrator's suspension stays the administrator's
                by = before.suspended_by
            after = dataclasses.replace(before, suspended=True, suspended_by=by)
            if release_memory and before.memory in {"device", "restoring"}:
                if before.former_devices:
                    raise PenstockError(
                        f"the device memory of tenant {name!r} cannot be released now",
                        "it is being moved to other devices", "try again in a moment",
                        reason="not-now",
                    )  # fmt: skip
                self.releases.check(managed)
                was = before.suspended if before.memory == "device" else before.suspended_before
                after = dataclasses.replace(
                    after, memory="releasing", suspended_before=was,
                    host_bytes=self.releases.charged_bytes(managed),
                )  # fmt: skip
            elif not release_memory and before.memory != "device":
                # Once its memory is back, it stays suspended.
                after = dataclasses.replace(after, suspended_before=True)
            put_suspension(self.registry, managed, after)
            if after.memory != before.memory:
                self.releases.go_on(managed)
        if not before.suspended:
            record_event(managed.tenant.directory, "suspended", by=caller.name, reason=reason)
        return managed

    def resume(self, name: str, caller: Principal, devices: Sequence[str] = ()) -> ManagedTenant:
        """Allows launches again; for an administrator, also lifts the holds of enforcement.

        Enforcement holds the tenant again if it is still over its quota or bypasses the shim. A
        tenant whose memory was released gets its shares back at once, and runs once its memory is
        on its devices again, or on `devices`, one for each of its own.

        Raises:
            PenstockError: the tenant is not the caller's, an administrator suspended it, its shares
                are not free any more, or `devices` are not equal to its own.
            OSError: the resumption cannot be recorded.
        """
        with self.registry.lock:
            managed = self._changeable(name, caller)
            before = managed.grant
            caller.check_may_lift(before, "resumed")
            after = self._resumed(managed, caller, devices)
            put_suspension(self.registry, managed, after)
            if after.memory != "device":
                self.releases.go_on(managed)
            elif managed.memory_release is not None:
                managed.memory_release.problem = ""
        if before.suspended and not after.suspended:
            record_event(managed.tenant.directory, "resumed", by=caller.name, reason="")
        if caller.is_admin:
            self.enforcer.pardon(managed.tenant.directory)
        return managed

    def _resumed(self, managed: ManagedTenant, caller: Principal, devices: Sequence[str]) -> Grant:
        """The grant once the tenant is resumed. Raises `PenstockError`, see `resume`."""
        before = managed.grant
        if devices and before.memory != "released":
            _check_stays(before, find_devices(self.node.devices, devices))
        if before.memory == "device":
            return dataclasses.replace(before, suspended=False, suspended_by="")
        after = before
        if before.memory == "released":
            if devices:
                self._check_may_move(before, caller, devices)
                usage = read_usage(managed.tenant.usage_page).devices
                spent_ns = [usage[index].spent_ns for index in range(len(before.devices))]
                after = placed(before, devices, self.node, self.releases.devices, spent_ns)
            others = [one for one in self.registry.grants() if one.tenant != before.tenant]
            check_room(after, self.node, others)
            left = self.bounds.left_to(caller, self.node, others)
            self.bounds.check_total(caller, after, left)
        return dataclasses.replace(
            after, memory="restoring", suspended_before=False, suspended_by=""
        )

    def _check_may_move(self, grant: Grant, caller: Principal, devices: Sequence[str]) -> None:
        """Raises `PenstockError` if one of `devices` is the pool's, and the tenant is not."""
        if not caller.is_pool:
            own = {share.uuid for share in grant.devices}
            chosen = find_devices(self.node.devices, devices)
            check_not_pools((one for one in chosen if one.uuid not in own), self.node.pool_devices)

    def revoke(self, name: str, grace_ns: int, caller: Principal, reason: str = "") -> Ended:
        """Ends a tenant: sends SIGTERM, SIGKILL after `grace_ns`, and then removes its quota.

        Returns when the tenant's processes have ended. Further calls in the meantime wait for the
        same end, and the earliest deadline of all calls applies.

        Raises:
            PenstockError: the tenant is not the caller's, or its processes survive SIGKILL. In the
                second case its share stays allocated until they have ended.
            OSError: the revocation cannot be recorded, or the directory cannot be removed now.
        """
        return self.begin_revocation(name, grace_ns, caller, reason).wait(caller.pid)

    def begin_revocation(
        self, name: str, grace_ns: int, caller: Principal, reason: str = ""
    ) -> Revocation:
        """Starts to end a tenant, like `revoke`, and does not wait for its end.

        Raises:
            PenstockError: the tenant is not the caller's.
            OSError: the revocation cannot be recorded.
        """
        with self.registry.lock:
            managed = self.registry.managed(name)
            caller.check_may_change(managed.grant)
            check_may_order(managed.grant, caller, self.node)
            revocation = self.revocations.revoke(managed, grace_ns, caller.pid)
        record_event(managed.tenant.directory, "revoked", by=caller.name, reason=reason)
        return revocation

    def _changeable(self, name: str, caller: Principal) -> ManagedTenant:
        """The caller's tenant, which is neither ending nor damaged. Raises `PenstockError`."""
        managed = self.registry.managed(name)
        caller.check_may_change(managed.grant)
        check_may_order(managed.grant, caller, self.node)
        check_not_ending(managed)
        managed.check_whole()
        return managed


def _check_stays(grant: Grant, named: Sequence[Device]) -> None:
    """Raises `PenstockError` if a tenant whose memory is on its devices would go to others."""
    if [one.uuid for one in named] != [share.uuid for share in grant.devices]:
        raise PenstockError(
            f"tenant {grant.tenant!r} cannot be resumed on other devices",
            "its device memory is not released",
            f"release it first: penstock suspend {grant.tenant} --release-memory",
            reason="not-now",
        )


def _check_in_use(managed: ManagedTenant, after: Grant, enforcer: Enforcer) -> None:
    """Checks that no memory share becomes smaller than the memory in use.

    Otherwise enforcement would end the program for using too much. Both the tenant's usage page and
    the devices' figures are checked, because the page may show less than the devices do.

    Raises:
        PenstockError: a share would become smaller than the memory in use.
    """
    figures = enforcer.figures(managed.tenant.directory)
    held_bytes = {one.device_uuid: one.memory_bytes or 0 for one in figures}
    try:
        charged = [one.total_bytes for one in read_usage(managed.tenant.usage_page).devices]
    except PageError:  # enforcement handles unreadable pages
        charged = []
    for at, (before, share) in enumerate(zip(managed.grant.devices, after.devices, strict=True)):
        charged_bytes = charged[at] if at < len(charged) else 0  # pages have room for more devices
        used_bytes = max(charged_bytes, held_bytes.get(share.uuid, 0))
        if used_bytes > share.memory_bytes < before.memory_bytes:
            raise PenstockError(
                f"the memory quota of tenant {after.tenant!r} on device {share.index} stays at "
                f"{human_memory(before.memory_bytes)}",
                f"{human_memory(used_bytes)} of that memory is in use, more than the new "
                f"{human_memory(share.memory_bytes)}",
                "have its program free some first, or force the change; enforcement then ends the "
                "program if it still uses more than its quota after the grace period",
                reason="not-now",
            )
