"""Periodic work of a manager that leads: silent nodes, leases, waits that are over, history."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.pool.claims import Claims
    from penstock.pool.manager import Manager
    from penstock.pool.membership import Membership

PERIOD_S = 0.25


def tick(manager: Manager, membership: Membership, claims: Claims) -> None:
    """One round. Raises `PenstockError` if the database cannot be used."""
    membership.check()
    claims.expire()
    with manager.changing() as registry:
        registry.absorb(registry.pool.settle(manager.clock.now_ns()))
    with manager.reading() as registry:
        manager.history.sample(registry)
