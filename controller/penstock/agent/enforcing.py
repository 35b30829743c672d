"""Holds the agent's tenants to their quota: once a second, by the devices' own figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.enforce import Enforcer

if TYPE_CHECKING:
    from penstock.agent.agent import Agent


class Enforcing:
    """A duty of the agent's rounds."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.enforcer = Enforcer(agent.source)

    def __call__(self, now_ns: int) -> bool:
        """Looks when a second has passed, and puts in force what is held back.

        Raises `PenstockError`: the devices cannot be asked.
        """
        if not self.enforcer.is_due(now_ns):
            return False
        wards = self._agent.wards()
        pages = {
            ward.tenant.name: usage
            for ward in wards
            if (usage := ward.supervisor.newest()) is not None
            and ward.supervisor.page_problem is None
        }
        try:
            self.enforcer.step(now_ns, [ward.subject() for ward in wards], pages)
        finally:  # what was held back stays so while the devices cannot be asked
            for ward in wards:
                ward.supervisor.held = self.enforcer.hold(ward.tenant.directory)
        return True
