"""Membership of a compute pool: the fence against replaced managers, and the pool's devices.

The identity of the pool and the highest term are on disk before orders of that term are obeyed.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import TYPE_CHECKING

from penstock.model import PenstockError, listing
from penstock.node.agent.pool_tenants import is_pools
from penstock.node.tenants.pool_record import (
    PoolRecord,
    read_pool_record,
    remove_pool_record,
    write_pool_record,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.node.agent.node import Node
    from penstock.node.agent.pool_orders import PoolOrders
    from penstock.node.agent.tenant_registry import TenantRegistry

CHECK_PERIOD_NS = 1_000_000_000
MOST_TERM = (1 << 63) - 1
MOST_POOL_NAME = 128  # characters


class PoolMembership:
    """The pool that this node belongs to. Thread-safe."""

    def __init__(self, node: Node, registry: TenantRegistry) -> None:
        self._node = node
        self._registry = registry
        self._lock = threading.Lock()
        self.record = PoolRecord()

    def join(self, devices: frozenset[str]) -> None:
        """Reads what is known of the pool, and gives the devices to it.

        Raises:
            PenstockError: the record cannot be read.
            OSError: the record cannot be written.
        """
        before = read_pool_record(self._node.state)
        record = dataclasses.replace(before or PoolRecord(), devices=tuple(sorted(devices)))
        if record != before:
            write_pool_record(self._node.state, record)
        self.record = record
        with self._registry.lock:
            self._node.pool_devices = devices
            self._node.is_in_pool = True

    def accept(self, orders: PoolOrders) -> None:
        """Checks the fencing token, and records it if it is new.

        Raises:
            PenstockError: the orders are of another pool or of a lower term.
            OSError: the token cannot be recorded.
        """
        with self._lock:
            record = self.record
            if not orders.pool or len(orders.pool) > MOST_POOL_NAME or orders.term > MOST_TERM:
                raise PenstockError(
                    "orders without a valid pool and term were refused",
                    f"the pool is {orders.pool[:MOST_POOL_NAME]!r}, the term {orders.term}",
                    "see what answers at the address of --pool",
                )
            if record.pool and orders.pool != record.pool:
                raise PenstockError(
                    f"orders of pool {orders.pool} were refused",
                    f"this node belongs to pool {record.pool}",
                    "to move it, end the pool's tenants here (penstock pool drain), stop the "
                    "agent, run penstock agent leave-pool, and start it again",
                    reason="not-allowed",
                )
            if orders.term < record.term:
                raise PenstockError(
                    f"orders of term {orders.term} were refused",
                    f"their manager was replaced: this node has seen term {record.term}",
                    "stop that manager, if it does not end by itself", reason="not-allowed",
                )  # fmt: skip
            if (orders.pool, orders.term) != (record.pool, record.term):
                record = dataclasses.replace(record, pool=orders.pool, term=orders.term)
                write_pool_record(self._node.state, record)
                self.record = record


class PoolRemains:
    """The agent's periodic task after a start without --pool: devices stay the pool's to its end.

    Devices with tenants of the pool stay closed to others until these have ended. Then the node
    forgets the pool.
    """

    def __init__(self, node: Node, registry: TenantRegistry, report: Callable[..., None]) -> None:
        self._node = node
        self._registry = registry
        self._report = report
        self._record: PoolRecord | None = None
        self._checked_ns = 0
        self._has_said = False

    def start(self) -> None:
        """Reads the record. Raises `PenstockError` if it cannot be read."""
        self._record = read_pool_record(self._node.state)
        self._checked_ns = time.monotonic_ns()
        if self._record is not None:
            self._check()

    def __call__(self, now_ns: int) -> bool:
        """Checks once a second whether tenants are left."""
        if self._record is None or now_ns - self._checked_ns < CHECK_PERIOD_NS:
            return False
        self._checked_ns = now_ns
        tenants = self._check()
        if tenants and not self._has_said:
            self._has_said = True
            self._report(
                "tenants of a pool are left",
                pool=self._record.pool,
                tenants=tenants[:16],
                reason="the agent was started without --pool; they run on, and nobody else gets "
                f"their devices ({listing(sorted(self._node.pool_devices))})",
                fix="start the agent with --pool again, or end them with penstock revoke",
            )
        return True

    def _check(self) -> list[str]:
        """The tenants that are left; forgets the pool if there are none."""
        with self._registry.lock:
            left = [grant for grant in self._registry.grants() if is_pools(grant)]
            uuids = {share.uuid for grant in left for share in grant.devices}
            self._node.pool_devices = frozenset(uuids)
            if not left and self._record is not None:
                remove_pool_record(self._node.state)
                self._report("the node has left its pool", pool=self._record.pool)
                self._record = None
        return sorted(grant.tenant for grant in left)
