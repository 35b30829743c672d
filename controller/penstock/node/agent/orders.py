"""Requests to the agent (grant, resize, suspend, revoke, …); each names its principal."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import time
from typing import TYPE_CHECKING, TypeVar

from penstock.devices import find_devices
from penstock.model import PenstockError
from penstock.node.admission.admit import plan
from penstock.node.admission.checks import free_shares
from penstock.node.admission.resize import grows, resized
from penstock.node.agent.enforcement_task import EnforcementTask
from penstock.node.agent.in_use import check_in_use
from penstock.node.agent.managed_tenant import ManagedTenant
from penstock.node.agent.revocation import check_not_ending, revoke
from penstock.node.agent.view import DeviceView, Ended, Granted, NodeView, TenantView
from penstock.node.containers import companions, container_libraries
from penstock.node.tenants.environment import tenant_variables
from penstock.node.tenants.grant import write_grant
from penstock.node.tenants.tenant import change_grant, create_tenant, open_quota
from penstock.node.tenants.tenant_events import record_event
from penstock_shim.pages import PageError, read_quota

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.devices import DriverLibraries
    from penstock.node.admission.admit import Request
    from penstock.node.admission.resize import Resize
    from penstock.node.agent.agent import Agent
    from penstock.node.agent.principal import Principal
    from penstock.node.supervision.supervisor import Held
    from penstock.node.tenants.grant import Grant
    from penstock_shim.pages import Limits

MOST_CUTS, CUT_AGAIN_S = 80, 0.05  # cutting back grown pages to make room for one grant
Made = TypeVar("Made")


class Orders:
    """Carries out requests on behalf of an agent. Every method may be called from any thread."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def node(self) -> NodeView:
        """The node's devices and how its agent is doing."""
        agent = self._agent
        grants = agent.grants()
        free = free_shares(agent.devices, agent.machine, grants)
        enforcing = EnforcementTask.of(agent)
        return NodeView(
            name=agent.node,
            machine=agent.machine,
            devices=tuple(
                DeviceView(
                    device,
                    free[device.uuid],
                    agent.watch.health(device.uuid),
                    enforcing.foreign_on(device.uuid) if enforcing else (),
                    agent.watch.report_of(device.uuid),
                )
                for device in agent.devices
            ),
            started_at=agent.started_at,
            tenants=len(grants),
            slowest_round_ns=agent.slowest_round_ns(),
            enforces=agent.enforces,
            driver_released=agent.source.released,
        )

    def grant(self, request: Request, caller: Principal) -> Granted:
        """Creates a tenant for the caller; idempotent for one request id.

        Raises:
            PenstockError: the tenant does not fit, exists already, or is not allowed.
        """
        if request.oversubscribe:
            caller.check_is_admin("to oversubscribe a device")
        self._agent.bounds.check(request, caller)
        request = self._agent.bounds.bounded(request)
        if caller.uid is not None:
            request = dataclasses.replace(
                request, user=caller.name, uid=caller.uid, owner_uid=caller.owner_uid
            )
        elif request.user is None:
            request = dataclasses.replace(request, user=caller.name)
        while True:
            managed, notes, is_new = self._with_room(lambda: self._found_or_made(request, caller))
            with managed.answering:
                if not self._agent.has(managed):
                    continue  # its creator could not offer it, and removed it
                try:
                    answer = self._answer(managed, request, notes)
                except BaseException:
                    if is_new and not managed.is_answered:
                        self._take_back(managed)
                    raise
                managed.is_answered = True
                return answer

    def _with_room(self, make: Callable[[], Made]) -> Made:
        """Calls `make`; retries on a full disk as long as grown pages are being cut back."""
        for _ in range(MOST_CUTS):
            with _no_room():
                return make()
            self._agent.pages.look()
            if not self._agent.pages.has_cut():
                break
            time.sleep(CUT_AGAIN_S)
        return make()

    def _found_or_made(
        self, request: Request, caller: Principal
    ) -> tuple[ManagedTenant, list[str], bool]:
        """The tenant of this request, notes for its owner, and whether it was just created."""
        agent = self._agent
        with agent.lock:
            if request.name is not None:
                agent.end_if_over(request.name)
            managed = self._granted_before(request)
            if managed is not None:
                return managed, [], False
            if not caller.is_admin:
                agent.rate.take(caller.person)
            agent.watch.check(find_devices(agent.devices, request.devices))
            candidates = (
                find_devices(agent.devices, request.candidates)
                if request.candidates
                else agent.devices
            )
            if not request.devices:
                candidates = agent.watch.usable(candidates)
            grants = agent.grants()
            agent.bounds.check_number(caller, grants, agent.pages.held_by(caller.person))
            left = agent.bounds.left_to(caller, agent.devices, agent.machine, grants)
            grant, notes = plan(
                request,
                agent.devices,
                grants,
                machine=agent.machine,
                candidates=candidates,
                names=agent.names(),
                most=left,
            )
            agent.bounds.check_total(caller, grant, left)
            tenant, lock = create_tenant(agent.state, grant, self._libraries(request))
            try:
                managed = ManagedTenant(
                    tenant, grant, lock, agent.tenant_table, caller=caller.process
                )
            except BaseException:
                os.close(lock)
                tenant.remove()
                raise
            agent.add(managed)
            return managed, notes, True

    def _answer(self, managed: ManagedTenant, request: Request, notes: list[str]) -> Granted:
        """Offers the tenant to containers, or finds its variables; repeatable after an error.

        Raises PenstockError, OSError.
        """
        variables: dict[str, str] = {}
        cdi_devices: tuple[str, ...] = ()
        if request.container:
            cdi_devices = self._offered(managed)
        else:
            variables = tenant_variables(
                self._agent.state, managed.tenant, managed.grant, self._agent.source
            )
        return Granted(self._view_of(managed), tuple(notes), variables, cdi_devices)

    def _take_back(self, managed: ManagedTenant) -> None:
        """Removes a tenant that was never reported to its owner."""
        try:
            self._agent.drop(managed)
        except OSError:
            with self._agent.lock:
                revoke(self._agent, managed, 0)

    def resize(self, name: str, change: Resize, caller: Principal) -> tuple[TenantView, list[str]]:
        """Changes a quota, from the next launch and allocation on.

        Raises as `grant`, and also where a program holds more memory than the new quota.
        """
        change.check()
        if change.oversubscribe:
            caller.check_is_admin("to oversubscribe a device")
        if change.accounted:
            caller.check_is_admin("to set what a scheduler accounts for")
        agent = self._agent
        with agent.lock:
            managed = agent.managed(name)
            caller.check_may_change(managed.grant)
            check_not_ending(managed)
            managed.check_whole()
            others = [grant for grant in agent.grants() if grant.tenant != name]
            after, notes = resized(managed.grant, change, lambda: others)
            if grows(managed.grant, after):
                caller.check_may_lift(managed.grant, "enlarged")
                left = agent.bounds.left_to(caller, agent.devices, agent.machine, others)
                agent.bounds.check_total(caller, after, left, managed.grant)
            if not change.force:
                self._check_in_use(managed, after)
            notes += change_grant(managed.tenant, after)
            if not change.force:
                try:  # usage may have grown before the quota was written; it cannot any more
                    self._check_in_use(managed, after)
                except PenstockError:
                    change_grant(managed.tenant, managed.grant)
                    raise
            agent.changed(managed, after)
        return self._view_of(managed), notes

    def _check_in_use(self, managed: ManagedTenant, after: Grant) -> None:
        enforcer = self._agent.enforcer
        figures = enforcer.figures(managed.tenant.directory) if enforcer else ()
        check_in_use(managed, after, figures)

    def release_driver(self, caller: Principal, reason: str) -> None:
        """Closes the driver until `reopen_driver`, so that its modules can be unloaded.

        Until then the devices count as lost: nothing is granted, but tenants can be ended. A
        restarted agent begins with an open driver.
        """
        caller.check_is_admin("to release the driver")
        if not self._agent.source.released:
            self._agent.report("driver-released", by=caller.name, reason=reason)
        self._agent.source.release(reason or "the driver was released")

    def reopen_driver(self, caller: Principal) -> None:
        """Reopens the driver; devices that answer can be granted within a second."""
        caller.check_is_admin("to reopen the driver")
        if self._agent.source.released:
            self._agent.report("driver-reopened", by=caller.name)
        self._agent.source.reopen()

    def suspend(self, name: str, caller: Principal, reason: str = "") -> TenantView:
        """Blocks launches until `resume`. Kernels already on the device run to their end."""
        return self._set_suspended(name, caller, suspended=True, reason=reason)

    def resume(self, name: str, caller: Principal) -> TenantView:
        """Lets launches continue; for an administrator, it lifts enforcement's holds as well.

        Enforcement acts again on a tenant that stays over its quota or bypasses the shim.
        """
        view = self._set_suspended(name, caller, suspended=False, reason="")
        if caller.is_admin and self._agent.enforcer is not None:
            self._agent.enforcer.pardon(view.directory)
        return view

    def revoke(self, name: str, grace_ns: int, caller: Principal, reason: str = "") -> Ended:
        """Ends a tenant: SIGTERM, SIGKILL after `grace_ns`, then its quota is removed.

        Returns when the tenant's processes have ended. Further calls meanwhile wait for the same
        end; the earliest deadline of all callers holds.

        Raises:
            PenstockError: the tenant is not the caller's, or its processes survive SIGKILL. Its
                share then stays allocated until they have ended.
            OSError: the revocation cannot be recorded, or the directory cannot be removed now.
        """
        with self._agent.lock:
            managed = self._agent.managed(name)
            caller.check_may_change(managed.grant)
            revocation = revoke(self._agent, managed, grace_ns, caller.pid)
        record_event(managed.tenant.directory, "revoked", by=caller.name, reason=reason)
        return revocation.wait(caller.pid)

    def tenants(self) -> list[TenantView]:
        """All tenants that the agent manages, by name."""
        return [self._view_of(managed) for managed in self._agent.managed_tenants()]

    def tenant(self, name: str) -> TenantView:
        """One of them. Raises `PenstockError`."""
        return self._view_of(self._agent.managed(name))

    def _libraries(self, request: Request) -> DriverLibraries:
        """The driver libraries for the tenant's programs: containers have them elsewhere."""
        if not request.container:
            return self._agent.source.libraries()
        if self._agent.containers is None:
            raise PenstockError(
                "this agent cannot offer devices to containers", "it does not run as root",
                "start it as root, or run the program on the machine itself", reason="not-now",
            )  # fmt: skip
        return container_libraries(self._agent.source)

    def _offered(self, managed: ManagedTenant) -> tuple[str, ...]:
        """Offers the tenant to container runtimes; the names of its CDI devices."""
        if self._agent.containers is None:
            return ()
        device = self._agent.containers.offer(managed.tenant)
        self._agent.handshakes.listen(managed.tenant, managed.grant.uid)  # where containers see it
        self._agent.check_still_there(managed)
        return (device, *companions(managed.tenant))

    def _granted_before(self, request: Request) -> ManagedTenant | None:
        """The tenant that an earlier call with this request id created; None: there is none."""
        if request.name is None:
            return None
        try:
            managed = self._agent.managed(request.name)
        except PenstockError:
            return None
        check_not_ending(managed)
        if not request.request_id:
            return None
        same = managed.grant.request_id == request.request_id and managed.grant.uid == request.uid
        return managed if same else None

    def _set_suspended(
        self, name: str, caller: Principal, *, suspended: bool, reason: str
    ) -> TenantView:
        with self._agent.lock:
            managed = self._agent.managed(name)
            caller.check_may_change(managed.grant)
            check_not_ending(managed)
            by = ""
            if not suspended:
                caller.check_may_lift(managed.grant, "resumed")
            elif caller.is_admin and caller.uid != managed.grant.uid:
                by = caller.name
            elif managed.grant.suspended:  # an administrator's suspension stays theirs
                by = managed.grant.suspended_by
            managed.check_whole()
            before, held = managed.grant.suspended, managed.supervisor.held
            after = dataclasses.replace(managed.grant, suspended=suspended, suspended_by=by)
            with open_quota(managed.tenant) as page:
                write_grant(managed.tenant.directory, after)
                self._agent.changed(managed, after)
                # The grant decides: where the page cannot be written now, the supervisor retries.
                with contextlib.suppress(PageError):
                    page.change(lambda limits: _with_order(limits, held, suspended=suspended))
        if before != suspended:
            event = "suspended" if suspended else "resumed"
            record_event(managed.tenant.directory, event, by=caller.name, reason=reason)
        return self._view_of(managed)

    def _view_of(self, managed: ManagedTenant) -> TenantView:
        enforcer = self._agent.enforcer
        return view_of(managed, enforcer.count(managed.tenant.name) if enforcer else None)


@contextlib.contextmanager
def _no_room() -> Iterator[None]:
    """Suppresses errors of a full file system or an exhausted disk quota."""
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise


def _with_order(limits: Limits, held: Held | None, *, suspended: bool) -> Limits:
    """The limits as requested; enforcement's holds stay in force."""
    ordered = dataclasses.replace(limits, suspended=suspended)
    return held.applied(ordered) if held else ordered


def view_of(managed: ManagedTenant, members: int | None) -> TenantView:
    """A tenant as it is now."""
    usage = managed.supervisor.usage
    finding = managed.finding
    suspended = False
    allowances = tuple(device.cores_permille for device in managed.grant.devices)
    try:
        limits = read_quota(managed.tenant.quota_page).limits
        suspended = limits.suspended or managed.is_held
        allowances = tuple(device.allowance for device in limits.devices)
    except PageError as error:
        finding = finding or str(error)
    return TenantView(
        grant=managed.grant,
        directory=managed.tenant.directory,
        suspended=suspended,
        allowances=allowances,
        processes=len(usage.slots) if usage else 0,
        members=members,
        finding=finding,
    )
