"""Liveness of pool applications on this node: whether a holder or another process lives."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from penstock.node.agent.managed_tenant import FIRST_PROCESS_NS
from penstock.node.enforcement.process import is_alive
from penstock.node.tenants.tenant_processes import (
    TENANT_VARIABLE,
    environments,
    members_of,
    of_user,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from penstock.node.agent.managed_tenant import ManagedTenant
    from penstock.node.agent.pool_holders import PoolHolders
    from penstock.node.enforcement import Enforcer


class PoolLiveness:
    """Says which applications are alive. Processes are looked for in a thread of its own."""

    def __init__(self, holders: PoolHolders, enforcer: Enforcer) -> None:
        self.holders = holders
        self._enforcer = enforcer
        self._lock = threading.Lock()
        self._with_processes: frozenset[str] = frozenset()
        self._looked_for: frozenset[str] = frozenset()  # by the last look
        self._is_looking = False
        self._thread = ThreadPoolExecutor(1, "pool-liveness")

    def stop(self) -> None:
        """Stops looking."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def alive(self, tenants: Mapping[str, ManagedTenant]) -> tuple[str, ...]:
        """The applications that are alive, as far as is known without a look at all processes."""
        living = set(self.holders.living())
        now_ns = time.monotonic_ns()
        for name, managed in tenants.items():
            if name not in living and self._may_live(name, managed, now_ns):
                living.add(name)
        return tuple(sorted(living))

    def look(self, tenants: Mapping[str, ManagedTenant], needed: Collection[str]) -> None:
        """Looks for processes of the applications without a living holder, unless it looks now."""
        self.holders.prune({*needed, *tenants})
        orphans = [one for name, one in tenants.items() if not self.holders.is_held(name)]
        with self._lock:
            if self._is_looking:
                return
            if not orphans:
                self._with_processes = self._looked_for = frozenset()
                return
            self._is_looking = True
        try:
            self._thread.submit(self._look, orphans)
        except RuntimeError:  # the agent is stopping
            self._is_looking = False

    def _look(self, orphans: list[ManagedTenant]) -> None:
        try:
            found = environments(TENANT_VARIABLE)
            alive = frozenset(
                one.tenant.name
                for one in orphans
                if of_user(members_of(found, one.tenant.directory), one.grant.uid)
            )
            with self._lock:
                self._with_processes = alive
                self._looked_for = frozenset(one.tenant.name for one in orphans)
        finally:
            with self._lock:
                self._is_looking = False

    def _may_live(self, name: str, managed: ManagedTenant, now_ns: int) -> bool:
        """Whether a process of the tenant is there, or its first one may be about to start."""
        if self.holders.is_held(name) is None and now_ns - managed.since_ns < FIRST_PROCESS_NS:
            return True
        with self._lock:
            if name in self._with_processes or name not in self._looked_for:
                return True
        return managed.holds_slots() or any(is_alive(p) for p in self._enforcer.members(name))
