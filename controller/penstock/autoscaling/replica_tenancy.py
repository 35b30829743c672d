"""How replicas become tenants: through admission in this process, or through an agent."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

from penstock.autoscaling.replica_keeper import PROGRAM
from penstock.node.tenants.tenant import Tenant, collect

if TYPE_CHECKING:
    from penstock.node.tenants.state import State


class Tenancy(Protocol):
    """Creates and clears the tenants of a set."""

    @property
    def keeper(self) -> str:
        """The keeper's program for `python -c`; arguments: state directory, set and number."""

    def clear(self, tenant: str) -> None:
        """Removes the remains of a tenant whose keeper was killed. Never raises."""


class OwnTenancy:
    """Tenants of this user's own state directory, created as by `penstock run`."""

    keeper = PROGRAM

    def __init__(self, state: State) -> None:
        self._state = state

    def clear(self, tenant: str) -> None:
        """See `Tenancy`. A live keeper removes its tenant itself."""
        if Tenant(self._state.tenants / tenant).directory.exists():
            with contextlib.suppress(OSError), self._state.lock():
                collect(self._state)
