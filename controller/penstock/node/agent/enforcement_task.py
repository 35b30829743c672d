"""Enforcement task: once a second, enforces quotas according to the devices' own figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.node.agent.handshake_sockets import Handshakes
    from penstock.node.agent.tenant_registry import TenantRegistry
    from penstock.node.enforcement import Enforcer, Foreign, Process

MOST_REPORTED = 16  # untracked processes reported per poll


@dataclass(eq=False)
class EnforcementTask:
    """The agent's periodic task that enforces quotas."""

    enforcer: Enforcer
    registry: TenantRegistry
    handshakes: Handshakes
    report: Callable[..., None]

    def __post_init__(self) -> None:
        self._polled: tuple[Foreign, ...] = ()
        self._foreign: set[tuple[str, Process]] = set()  # with their devices, as of the last poll
        self._reported: set[tuple[str, Process]] = set()
        self._lasting: tuple[Foreign, ...] = ()  # seen in both of the last two polls

    def __call__(self, now_ns: int) -> bool:
        """Runs enforcement once a second, and applies the holds that it decides on.

        Raises:
            PenstockError: the devices cannot be polled.
        """
        if not self.enforcer.is_due(now_ns):
            return False
        managed_tenants = self.registry.managed_tenants()
        pages = {
            managed.tenant.name: usage
            for managed in managed_tenants
            if (usage := managed.supervisor.newest()) is not None
            and managed.supervisor.page_problem is None
        }
        try:
            subjects = [managed.subject(self.handshakes) for managed in managed_tenants]
            self.enforcer.step(now_ns, subjects, pages)
        finally:  # holds stay in force even while the devices cannot be polled
            for managed in managed_tenants:
                managed.supervisor.held = self.enforcer.hold(managed.tenant.directory)
                managed.take_findings(self.enforcer.findings(managed.tenant.directory))
        self._report_foreign()
        return True

    def foreign_on(self, uuid: str) -> tuple[Process, ...]:
        """Untracked processes that used the device in both of the last two polls."""
        return tuple(one.process for one in self._lasting if one.device == uuid)

    def _report_foreign(self) -> None:
        """Reports each untracked process on a device once; these processes are not ended.

        A process that appears in only one poll may have been too new to be assigned to its tenant.
        """
        if self.enforcer.foreign is self._polled:
            return
        self._polled = self.enforcer.foreign
        seen = {(one.device, one.process): one for one in self._polled}
        lasting = seen.keys() & self._foreign
        self._lasting = tuple(seen[key] for key in sorted(lasting))
        new = sorted(lasting - self._reported)[:MOST_REPORTED]
        for one in (seen[key] for key in new):
            self.report(
                "foreign",
                device=one.device,
                pid=one.process.pid,
                command=one.process.command,
                memory_bytes=one.memory_bytes,
            )
        self._foreign = set(seen)
        self._reported = (self._reported & self._foreign) | set(new)
