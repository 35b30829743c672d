"""How replicas become tenants: by this machine's own admission, or by somebody's who owns it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

from penstock.autoscaling.replica_keeper import PROGRAM
from penstock.node.tenants.tenant import Tenant, collect

if TYPE_CHECKING:
    from penstock.node.tenants.state import State


class Tenancy(Protocol):
    """Where the tenants of a set come from, and where they go."""

    @property
    def keeper(self) -> str:
        """What a replica's keeper runs (`python -c`), with state directory, set and number."""

    def clear(self, tenant: str) -> None:
        """Takes away what is left of a tenant whose keeper was killed. Never raises."""


class OwnTenancy:
    """Tenants of a state directory of ours, as `penstock run` makes them."""

    keeper = PROGRAM

    def __init__(self, state: State) -> None:
        self._state = state

    def clear(self, tenant: str) -> None:
        """See `Tenancy`. A keeper that lives removes its own."""
        if Tenant(self._state.tenants / tenant).directory.exists():
            with contextlib.suppress(OSError), self._state.lock():
                collect(self._state)
