"""The node agent: creates its parts, and starts and stops them."""

from __future__ import annotations

import functools
import os
import socket
import sys
from typing import TYPE_CHECKING

from penstock.node.agent.agent_lock import node_lock, take_node
from penstock.node.agent.card_workers import CardWorkers
from penstock.node.agent.container_offers import ContainerOffers
from penstock.node.agent.device_task import DeviceTask
from penstock.node.agent.enforcement_task import EnforcementTask
from penstock.node.agent.grant_order import GrantOrder
from penstock.node.agent.grant_rate import GrantRate
from penstock.node.agent.handshake_sockets import Handshakes
from penstock.node.agent.housekeeping import Housekeeping
from penstock.node.agent.memory_release import MemoryReleases
from penstock.node.agent.node import Node
from penstock.node.agent.orders import Orders
from penstock.node.agent.page_sizes import PageSizes
from penstock.node.agent.person import People
from penstock.node.agent.pool_devices import PoolDevices
from penstock.node.agent.pool_holders import PoolHolders
from penstock.node.agent.pool_liveness import PoolLiveness
from penstock.node.agent.pool_member import PoolMember
from penstock.node.agent.pool_membership import PoolMembership, PoolRemains
from penstock.node.agent.pool_steps import PoolSteps
from penstock.node.agent.reconcile_loop import ReconcileLoop
from penstock.node.agent.revocation import Revocations
from penstock.node.agent.tenant_registry import TenantRegistry
from penstock.node.agent.usage_recorder import UsageRecorder
from penstock.node.checkpoint.driver_helper import DriverHelper, helper_environment
from penstock.node.checkpoint.process_memory import ProcessMemory
from penstock.node.enforcement import Enforcer
from penstock.node.supervision.pid_namespaces import NamespacedProcesses
from penstock.node.supervision.tenant_table import TenantTable
from penstock.node.tenants.tenant import remove_leftovers
from penstock_shim.pages import survive_lost_pages
from penstock_shim.time_slices import TimeSlices

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.devices import DeviceBackend
    from penstock.node.agent.pool_devices import PoolOptions
    from penstock.node.agent.user_limits import Bounds
    from penstock.node.containers import Containers
    from penstock.node.tenants.state import State

NAMESPACE_SCAN_PERIOD_NS = 1_000_000_000  # between scans of all processes on the machine


class Agent:
    """Owner of a state directory and of the tenants in it, from `start` to `stop`."""

    def __init__(
        self,
        state: State,
        source: DeviceBackend,
        name: str | None,  # the node's name; None for the host name
        *,
        enforces: bool,  # true for root; a tenant with the agent's own uid could undo its quota
        bounds: Bounds,
        containers: Containers | None,  # None if tenants are not offered to containers
        meter_directory: Path | None,  # None for the default directory
        report: Callable[..., None],  # records problems that concern the whole node
        watchdog: Callable[[int], bool],  # periodic task that runs after all others
        host_memory_bytes: int | None = None,  # for released memory; None for what can be spared
        pool: PoolOptions | None = None,  # None if the node is in no compute pool
        card_python: str = sys.executable,  # an interpreter that has torch
    ) -> None:
        """Creates the parts. Raises `PenstockError` if another process uses `meter_directory`."""
        node = self.node = Node(name or socket.gethostname(), state, source, enforces)
        self.people = People()
        rate = GrantRate()
        # The tenants, and the parts that handle a tenant from its grant to its end.
        namespaced = NamespacedProcesses(scan_period_ns=NAMESPACE_SCAN_PERIOD_NS)
        handshakes = Handshakes(namespaced.add_visible)
        table = self.tenant_table = TenantTable(state, namespaced)
        offers = self._offers = ContainerOffers(source, containers)
        registry = self.registry = TenantRegistry(node, table, handshakes, TimeSlices(), offers)
        # The reconcile loop.
        enforcer = self.enforcer = Enforcer(source)
        revocations = Revocations(registry, handshakes, enforcer)
        devices = self.devices = DeviceTask(source, registry, report)
        helper = DriverHelper(functools.partial(helper_environment, source))
        releases = self._releases = MemoryReleases(
            node, registry, handshakes, enforcer, devices, ProcessMemory(helper),
            host_memory_bytes,
        )  # fmt: skip
        housekeeping = self._housekeeping = Housekeeping(
            node, registry, revocations, releases, enforcer
        )
        loop = self.loop = ReconcileLoop(registry, table, housekeeping, report)
        # The periodic tasks of the loop.
        pages = PageSizes(node, registry, revocations, self.people, rate, report)
        enforcement = self.enforcement = EnforcementTask(enforcer, registry, handshakes, report)
        self.recorder = UsageRecorder(node, registry, enforcement, devices, loop, meter_directory)
        remains = self._pool_remains = PoolRemains(node, registry, report)
        loop.tasks = (handshakes, devices, pages, enforcement, self.recorder, remains, watchdog)
        registry.at_end = (self.recorder.close_tenant, pages.shut)
        # Requests.
        self.grant_order = GrantOrder(
            node, bounds, rate, devices, pages, registry, offers, revocations, housekeeping
        )
        self.orders = Orders(node, bounds, registry, enforcer, revocations, releases, report)
        # The compute pool.
        self.card_workers = CardWorkers(node, registry, card_python)
        self.pool_member: PoolMember | None = None
        if pool is not None:
            self.pool_devices = PoolDevices(node, registry, devices, pool)
            self.pool_holders = PoolHolders(node.state)
            self.pool_member = PoolMember(
                registry,
                PoolMembership(node, registry),
                self.pool_devices,
                PoolSteps(registry, self.grant_order, self.orders, self.card_workers),
                PoolLiveness(self.pool_holders, enforcer),
                report=report,
            )
        self._own_lock = self._node_lock = -1

    def start(self) -> None:
        """Locks the state directory, adopts its tenants, and starts the reconcile loop.

        Raises:
            PenstockError: another agent uses the state directory, or the directory or the devices
                are unusable.
        """
        self._own_lock = take_node(
            self.node.state.agent_lock,
            f"an agent is already running on {self.node.state.directory}",
        )
        try:
            if self.node.machine is None:  # two agents would grant the same devices twice
                self._node_lock = take_node(
                    node_lock(), "an agent already manages this node's devices"
                )
            survive_lost_pages()  # in case a tenant truncates its pages
            self.node.devices = self.node.source.devices()
            with self.node.state.lock(), self.registry.lock:
                remove_leftovers(self.node.state)
                self._housekeeping.adopt_all()
            self._offers.adopt()
            self._start_pool()
            self.loop.start()
            if self.pool_member is not None:
                self.pool_member.start()
        except BaseException:
            self._release()
            raise

    def _start_pool(self) -> None:
        """Closes the pool's devices to others. Raises `PenstockError` if that is not possible."""
        if self.pool_member is None:
            self._pool_remains.start()
            return
        self.pool_holders.load()
        self.pool_member.membership.join(self.pool_devices.choose())

    def stop(self) -> None:
        """Stops the reconcile loop. Tenants keep running under their current quotas."""
        if self.pool_member is not None:
            self.pool_member.stop()
        self.loop.stop()
        for managed in self.registry.managed_tenants():
            if managed.revocation is not None:
                managed.revocation.stop()
        self._releases.stop()
        self._release()
        self.recorder.close()

    def _release(self) -> None:
        self.registry.close()
        for descriptor in (self._own_lock, self._node_lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._own_lock = self._node_lock = -1
