"""Holds the agent's tenants to their quota: once a second, by the devices' own figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.enforce import Enforcer, Hold

if TYPE_CHECKING:
    from penstock.agent.agent import Agent
    from penstock.agent.ward import Ward

_NOTHING = Hold()


class Enforcing:
    """A duty of the agent's rounds."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.enforcer = Enforcer(agent.source)

    def __call__(self, now_ns: int) -> None:
        """One round: looks when a second has passed, and puts in force what is held back.

        Raises `PenstockError`: the devices cannot be asked.
        """
        wards = self._agent.wards()
        pages = {
            ward.tenant.name: ward.supervisor.usage
            for ward in wards
            if ward.supervisor.usage is not None and ward.supervisor.page_problem is None
        }
        try:
            self.enforcer.step(now_ns, [ward.subject() for ward in wards], pages)
        finally:  # what was held back stays so while the devices cannot be asked
            self._hold_back(wards)

    def _hold_back(self, wards: list[Ward]) -> None:
        for ward in wards:
            hold = self.enforcer.hold(ward.tenant.directory)
            ward.supervisor.held = None if hold == _NOTHING else hold
