"""Enforcement task: holds tenants to their quota once a second, by the devices' figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.node.enforcement import Enforcer

if TYPE_CHECKING:
    from penstock.node.agent.agent import Agent
    from penstock.node.enforcement import Foreign, Process

MOST_TOLD = 16  # untracked processes reported per poll


class EnforcementTask:
    """A periodic task of the agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.enforcer = agent.enforcer = Enforcer(agent.source)
        self._looked: tuple[Foreign, ...] = ()
        self._foreign: set[tuple[str, Process]] = set()  # by device, as of the last poll
        self._told: set[tuple[str, Process]] = set()
        self._lasting: tuple[Foreign, ...] = ()  # seen in both of the last two polls

    def __call__(self, now_ns: int) -> bool:
        """Runs enforcement once a second, and puts its holds in force.

        Raises `PenstockError`: the devices cannot be polled.
        """
        if not self.enforcer.is_due(now_ns):
            return False
        managed_tenants = self._agent.managed_tenants()
        pages = {
            managed.tenant.name: usage
            for managed in managed_tenants
            if (usage := managed.supervisor.newest()) is not None
            and managed.supervisor.page_problem is None
        }
        try:
            handshakes = self._agent.handshakes
            subjects = [managed.subject(handshakes) for managed in managed_tenants]
            self.enforcer.step(now_ns, subjects, pages)
        finally:  # holds stay in force while the devices cannot be polled
            for managed in managed_tenants:
                managed.supervisor.held = self.enforcer.hold(managed.tenant.directory)
                managed.take_findings(self.enforcer.findings(managed.tenant.directory))
        self._tell_of_foreign()
        return True

    @classmethod
    def of(cls, agent: Agent) -> EnforcementTask | None:
        """The enforcement task among the agent's periodic tasks; None: there is none."""
        return next((one for one in agent.periodic_tasks if isinstance(one, cls)), None)

    def foreign_on(self, uuid: str) -> tuple[Process, ...]:
        """Untracked processes that used the device in both of the last two polls."""
        return tuple(one.process for one in self._lasting if one.device == uuid)

    def _tell_of_foreign(self) -> None:
        """Reports untracked processes on the devices, once each; they are left alone.

        A process seen in one poll only may have been too young to be assigned to its tenant.
        """
        if self.enforcer.foreign is self._looked:
            return
        self._looked = self.enforcer.foreign
        seen = {(one.device, one.process): one for one in self._looked}
        lasting = seen.keys() & self._foreign
        self._lasting = tuple(seen[key] for key in sorted(lasting))
        new = sorted(lasting - self._told)[:MOST_TOLD]
        for one in (seen[key] for key in new):
            self._agent.report(
                "foreign",
                device=one.device,
                pid=one.process.pid,
                command=one.process.command,
                memory_bytes=one.memory_bytes,
            )
        self._foreign = set(seen)
        self._told = (self._told & self._foreign) | set(new)
