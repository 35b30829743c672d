"""Holds the agent's tenants to their quota: once a second, by the devices' own figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.node.enforcement import Enforcer

if TYPE_CHECKING:
    from penstock.node.agent.agent import Agent
    from penstock.node.enforcement import Foreign, Process

MOST_TOLD = 16  # of foreign processes in a look


class EnforcementTask:
    """A periodic task of the agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.enforcer = agent.enforcer = Enforcer(agent.source)
        self._looked: tuple[Foreign, ...] = ()
        self._foreign: set[tuple[str, Process]] = set()  # by device, as of the last look
        self._told: set[tuple[str, Process]] = set()
        self._lasting: tuple[Foreign, ...] = ()  # as of the last two looks

    def __call__(self, now_ns: int) -> bool:
        """Looks when a second has passed, and puts in force what is held back.

        Raises `PenstockError`: the devices cannot be asked.
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
        finally:  # what was held back stays so while the devices cannot be asked
            for managed in managed_tenants:
                managed.supervisor.held = self.enforcer.hold(managed.tenant.directory)
                managed.take_findings(self.enforcer.findings(managed.tenant.directory))
        self._tell_of_foreign()
        return True

    @classmethod
    def of(cls, agent: Agent) -> EnforcementTask | None:
        """The one among the agent's periodic tasks."""
        return next((one for one in agent.periodic_tasks if isinstance(one, cls)), None)

    def foreign_on(self, uuid: str) -> tuple[Process, ...]:
        """Processes of no tenant that use the device, as of the last two looks."""
        return tuple(one.process for one in self._lasting if one.device == uuid)

    def _tell_of_foreign(self) -> None:
        """Processes of no tenant on the devices: said once each, and left alone.

        Who was so at one look alone may only have been too young to be known.
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
