"""The node agent: its reconcile loop, and the adoption of existing tenants at the start."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from penstock.devices.aside import FILES
from penstock.model import PenstockError, listing
from penstock.node.agent.agent_lock import node_lock, take_node
from penstock.node.agent.device_task import DeviceTask
from penstock.node.agent.grant_rate import GrantRate
from penstock.node.agent.handshake_sockets import Handshakes
from penstock.node.agent.managed_tenant import ManagedTenant
from penstock.node.agent.page_sizes import PageSizes
from penstock.node.agent.person import People
from penstock.node.agent.revocation import go_on
from penstock.node.agent.user_limits import Bounds, person_of
from penstock.node.enforcement.process import is_alive
from penstock.node.supervision.pid_namespaces import NamespacedProcesses
from penstock.node.supervision.supervisor import PERIOD_S
from penstock.node.supervision.tenant_table import TenantTable
from penstock.node.tenants.grant import read_grant
from penstock.node.tenants.lock import take
from penstock.node.tenants.recovery import grant_of_pages
from penstock.node.tenants.tenant import (
    ENTERED,
    SUPERVISOR_LOCK,
    Tenant,
    has_processes,
    remove_leftovers,
    tenants_of,
)
from penstock.node.tenants.tenant_events import record_event
from penstock.node.tenants.tenant_processes import (
    TENANT_VARIABLE,
    environments,
    members_of,
    of_user,
    uids_of,
)
from penstock_shim.pages import PageError, survive_lost_pages
from penstock_shim.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from penstock.devices import Device, DeviceBackend
    from penstock.node.containers import Containers
    from penstock.node.enforcement import Enforcer
    from penstock.node.tenants.grant import Grant
    from penstock.node.tenants.state import State

HOUSEKEEPING_NS = 1_000_000_000
DROPS_FOR_NS = 50_000_000  # budget per iteration: one user's many tenants may end at once
OUTSIDERS_PERIOD_NS = 1_000_000_000  # between scans of all processes of the machine
WARDS_A_ROUND = 50  # unchanged tenants are supervised per iteration all the same …
PERIODS_A_SECOND = 10  # … each of them once a second at least
REMEMBERED_NS = 60_000_000_000  # period that the slowest iteration is reported for


class Agent:
    """Owns a state directory and the tenants in it, from `start` to `stop`.

    `lock` guards the table of tenants; the reconcile loop holds it only to read the table. `Orders`
    carries out requests on the agent's behalf.
    """

    def __init__(self, state: State, source: DeviceBackend, node: str | None = None) -> None:
        """`node`: the node's name; by default the host name."""
        self.state = state
        self.source = source
        self.node = node or socket.gethostname()
        self.machine = str(source.machine) if source.machine else None
        self.started_at = time.time()
        self.enforces = os.geteuid() == 0  # else a tenant, which has our uid, could undo its quota
        self.bounds = Bounds()
        self.people = People()
        self.rate = GrantRate()
        self.pages = PageSizes(self)
        self.lock = threading.RLock()
        self.tenant_table = TenantTable(
            state, NamespacedProcesses(scan_period_ns=OUTSIDERS_PERIOD_NS)
        )
        self.devices: list[Device] = []
        self.turns = Turns()
        self.handshakes = Handshakes(self.tenant_table.namespaced.meet)
        self.enforcer: Enforcer | None = None  # set by `EnforcementTask`
        self.containers: Containers | None = None  # None: tenants are not offered to containers
        self.watch = DeviceTask(self)
        # Periodic tasks run in each iteration, with its time (CLOCK_MONOTONIC, ns), and return
        # whether they were due. The callbacks in `at_end` run before an ended tenant is removed.
        self.periodic_tasks: list[Callable[[int], bool]] = [self.handshakes, self.watch, self.pages]
        self.at_end: list[Callable[[ManagedTenant], None]] = []
        self._problems: dict[
            str, str | None
        ] = {}  # by periodic task: why it failed in the last iteration
        # Reports node-wide problems, those of no single tenant.
        self.report: Callable[..., None] = lambda event, **fields: None  # noqa: ARG005
        self._managed_tenants: dict[str, ManagedTenant] = {}
        self._sorted: tuple[ManagedTenant, ...] | None = (
            None  # sorted by name; None: they have changed
        )
        self._directories: tuple[Path, ...] | None = None  # of all tenants; None: they have changed
        self._by_directory: dict[Path, ManagedTenant] = {}
        self._others: dict[str, Tenant] = {}  # supervised by a `penstock run` of their own
        self._damaged: dict[str, str] = {}  # tenants with unusable grant or pages, and why
        self._offered_still: set[str] = set()  # ended tenants that are still offered to containers
        self._own_lock = self._node_lock = -1
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._kept_house_ns = 0
        self._round_number = 0
        self._rounds: deque[tuple[int, int]] = deque()  # ended at, took

    def start(self) -> None:
        """Locks the state directory, adopts its tenants, and starts the reconcile loop.

        Raises:
            PenstockError: another agent has the directory, or it or the devices are unusable.
        """
        self._own_lock = take_node(
            self.state.agent_lock, f"an agent runs on {self.state.directory} already"
        )
        try:
            if self.machine is None:  # two agents would grant the same devices twice
                self._node_lock = take_node(
                    node_lock(), "an agent runs this node's devices already"
                )
            survive_lost_pages()  # a tenant that truncates its pages harms nobody else
            self.devices = self.source.devices()
            with self.state.lock(), self.lock:
                remove_leftovers(self.state)
                self._adopt()
            if self.containers is not None:
                self.containers.adopt()
            self._round()
        except BaseException:
            self._let_go()
            raise
        self._thread = threading.Thread(target=self._run, name="rounds", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the reconcile loop. Tenants continue under their last quota."""
        self._stopping.set()
        for managed in self.managed_tenants():
            if managed.revocation is not None:
                managed.revocation.stop()
        if self._thread is not None:
            self._thread.join()
        self._let_go()

    def managed_tenants(self) -> tuple[ManagedTenant, ...]:
        """The tenants that this agent manages, by name."""
        with self.lock:
            if self._sorted is None:
                self._sorted = tuple(
                    self._managed_tenants[name] for name in sorted(self._managed_tenants)
                )
            return self._sorted

    def managed(self, name: str) -> ManagedTenant:
        """The tenant called `name`. Raises `PenstockError`."""
        with self.lock:
            found = self._managed_tenants.get(name)
            if found is not None:
                return found
            if name in self._others and name in self._damaged:
                raise PenstockError(
                    f"tenant {name!r} is damaged", self._damaged[name],
                    f"end its processes, then remove {self._others[name].directory}",
                    reason="not-now",
                )  # fmt: skip
            if name in self._others:
                raise PenstockError(
                    f"tenant {name!r} is not managed by the agent",
                    "its penstock run was started before the agent and supervises it",
                    "change it with penstock quota set, as its own user, or wait for it to end",
                    reason="not-now",
                )
            names = listing(sorted(self._managed_tenants)) or "none"
        raise PenstockError(
            f"no tenant {name!r} on {self.node}", f"tenants: {names}", "see penstock ps",
            reason="no-such-tenant",
        )  # fmt: skip

    def grants(self) -> list[Grant]:
        """All grants of this node; an unreadable one is reconstructed from the tenant's pages."""
        with self.lock:
            grants = [managed.grant for managed in self._managed_tenants.values()]
            for tenant in self._others.values():
                try:
                    grants.append(tenant.grant())
                except PenstockError:  # noqa: PERF203 - one at a time is what is wanted
                    with contextlib.suppress(PageError, OSError):  # it ended, or its pages are lost
                        grants.append(grant_of_pages(tenant, self.machine, self.devices))
        return grants

    def names(self) -> list[str]:
        """The names of all tenants on this node."""
        with self.lock:
            return [*self._managed_tenants, *self._others]

    def add(self, managed: ManagedTenant) -> None:
        """Manages a new tenant from now on. Call it with `lock` held."""
        self._managed_tenants[managed.tenant.name] = managed
        self._sorted = self._directories = None
        self.tenant_table.granted(managed.tenant.directory, managed.grant)
        self.handshakes.listen(managed.tenant, managed.grant.uid)
        self._give_turns(managed)

    def changed(self, managed: ManagedTenant, grant: Grant) -> None:
        """Takes in a grant that was just rewritten. Call it with `lock` held."""
        managed.grant = grant
        self.tenant_table.granted(managed.tenant.directory, grant)

    def _give_turns(self, managed: ManagedTenant) -> None:
        """Schedules time slices; without them a tenant still keeps its quota, but less exactly."""
        try:
            self.turns.add(managed.tenant.name, managed.tenant.directory)
        except (PageError, OSError) as error:
            record_event(managed.tenant.directory, "no-turns", reason=str(error))

    def suspects(self, managed: ManagedTenant) -> Callable[[int], bool]:
        """A predicate on pids: whether the process belongs to the tenant's owner.

        It is never true for an administrator's tenant: a system service may hold a descriptor that
        somebody handed to it, and is not to blame for that.
        """
        uid, person = managed.grant.uid, person_of(managed.grant)
        if not uid or person is None:
            return lambda _: False
        return lambda pid: any(
            one == uid or self.people.owner_of(one) == person >= 0 for one in uids_of(pid)
        )

    def shut_out(self, grant: Grant, for_ns: int) -> None:
        """Refuses further grants to the tenant's owner for `for_ns`; administrators are exempt."""
        person = person_of(grant)
        if person is not None:
            self.rate.shut_out(person, for_ns)

    def has(self, managed: ManagedTenant) -> bool:
        """Whether the agent still manages it."""
        with self.lock:
            return self._managed_tenants.get(managed.tenant.name) is managed

    def check_still_there(self, managed: ManagedTenant) -> None:
        """Undoes the offer and raises `PenstockError` if the tenant was revoked meanwhile."""
        name = managed.tenant.name
        with self.lock:
            if name not in self._managed_tenants:
                self.handshakes.forget(name)
                self._withdraw(name)
        if not self.has(managed) or managed.revocation is not None:
            raise PenstockError(
                f"tenant {name!r} was revoked while it was granted", "another request revoked it",
                "try again", reason="not-now",
            )  # fmt: skip

    def drop(self, managed: ManagedTenant) -> None:
        """Ends a tenant without processes: removes its directory.

        Raises OSError: the directory cannot be removed, and its share stays allocated.
        """
        for last in self.at_end:
            last(managed)
        self.pages.shut(managed)
        name = managed.tenant.name
        with self.lock:
            if self._managed_tenants.get(name) is not managed:
                return
            managed.tenant.remove()
            del self._managed_tenants[name]
            self._sorted = self._directories = None
            self.tenant_table.granted(managed.tenant.directory, None)
            self.turns.remove(name)
            self.handshakes.forget(name)
            self._withdraw(name)
            managed.close()

    def _withdraw(self, name: str) -> None:
        """Stops offering the tenant to containers; a failure is retried later."""
        if self.containers is None:
            return
        try:
            self.containers.withdraw(name)
            self._offered_still.discard(name)
        except (PenstockError, OSError):
            self._offered_still.add(name)

    def end_if_over(self, name: str) -> None:
        """Frees the name of an ended tenant at once, not at the next housekeeping."""
        with self.lock:
            managed = self._managed_tenants.get(name)
            if (
                managed is not None
                and managed.revocation is None
                and managed.may_end(time.monotonic_ns())
                and not has_processes(managed.tenant, uid=managed.grant.uid)
                and not self._is_peopled(managed)
            ):
                self.drop(managed)

    def _is_peopled(self, managed: ManagedTenant) -> bool:
        """Whether enforcement knows a live process of it, whatever its environment says."""
        return self.enforcer is not None and any(
            is_alive(one) for one in self.enforcer.members(managed.tenant.name)
        )

    def slowest_round_ns(self) -> int:
        """The longest iteration of the last minute."""
        return max((took for _, took in list(self._rounds)), default=0)

    def last_round_ns(self) -> int:
        """How long the last iteration took."""
        return self._rounds[-1][1] if self._rounds else 0

    def damaged_tenants(self) -> int:
        """How many tenants were found with an unusable grant or unusable pages."""
        return len(self._damaged)

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            begun = time.monotonic()
            self._round()
            due = max(due + PERIOD_S, begun + PERIOD_S / 2)

    def _round(self) -> None:
        begun_ns = time.monotonic_ns()
        with self.lock:
            managed_tenants = self.managed_tenants()
            if self._directories is None:
                others = (tenant.directory for tenant in self._others.values())
                self._by_directory = {
                    managed.tenant.directory: managed for managed in managed_tenants
                }
                self._directories = (*self._by_directory, *others)
            directories, by_directory = self._directories, self._by_directory
        self.tenant_table.look(begun_ns, directories)
        turns = max(1, min(PERIODS_A_SECOND, len(managed_tenants) // WARDS_A_ROUND))
        self._round_number += 1
        due = dict.fromkeys(managed_tenants[self._round_number % turns :: turns])
        concerned = map(by_directory.get, self.tenant_table.concerned)
        due.update(dict.fromkeys(managed for managed in concerned if managed is not None))
        for managed in due:
            managed.look_after(begun_ns)
        for periodic_task in self.periodic_tasks:
            self._do(periodic_task, begun_ns)
        if begun_ns - self._kept_house_ns >= HOUSEKEEPING_NS:
            self._kept_house_ns = begun_ns
            self._keep_house(managed_tenants, begun_ns)
        ended_ns = time.monotonic_ns()
        self._rounds.append((ended_ns, ended_ns - begun_ns))
        while self._rounds[0][0] < ended_ns - REMEMBERED_NS:
            self._rounds.popleft()

    def _do(self, periodic_task: Callable[[int], bool], now_ns: int) -> None:
        """Runs one task; a failure is retried in the next iteration and delays nothing else."""
        try:
            done = periodic_task(now_ns)
        except Exception as error:  # noqa: BLE001 - the loop must survive any task
            self._tell(type(periodic_task).__name__, f"{type(error).__name__}: {error}")
        else:
            if done:
                self._tell(type(periodic_task).__name__, None)

    def fails(self, periodic_task: type) -> bool:
        """Whether the periodic task of this kind failed when it was last due."""
        return self._problems.get(periodic_task.__name__) is not None

    def _tell(self, periodic_task: str, problem: str | None) -> None:
        """Reports once that a periodic task fails, and once that it works again."""
        if problem == self._problems.get(periodic_task):
            return
        self._problems[periodic_task] = problem
        self.report("failing" if problem else "works again", task=periodic_task, reason=problem)

    def _keep_house(self, managed_tenants: Sequence[ManagedTenant], now_ns: int) -> None:
        """Ends tenants without processes, and adopts those whose `penstock run` was killed."""
        self._end_those_over(managed_tenants, now_ns)
        with self.lock:
            for name in [one for one in self._offered_still if one not in self._managed_tenants]:
                self._withdraw(name)
        for managed in managed_tenants:
            if managed.damage is not None:
                self._look_again(managed)
        with self.lock:
            for name, tenant in list(self._others.items()):
                if not tenant.directory.exists() or (
                    not tenant.is_supervised() and self._take_up(tenant)
                ):
                    del self._others[name]
                    self._directories = None
            self._damaged = {
                name: why
                for name, why in self._damaged.items()
                if name in self._managed_tenants or name in self._others
            }

    def _end_those_over(self, managed_tenants: Sequence[ManagedTenant], now_ns: int) -> None:
        """Ends as many as fit into one iteration; the next one continues."""
        over = [
            managed
            for managed in managed_tenants
            if managed.revocation is None and managed.may_end(now_ns) and not managed.holds_slots()
        ]
        if not over:
            return
        found = environments(TENANT_VARIABLE)
        until_ns = time.monotonic_ns() + DROPS_FOR_NS
        for managed in over:
            pids = of_user(members_of(found, managed.tenant.directory), managed.grant.uid)
            if pids or self._is_peopled(managed):
                continue
            if time.monotonic_ns() > until_ns:
                self._kept_house_ns = 0
                return
            with contextlib.suppress(OSError):  # it is tried again in a second
                self.drop(managed)

    def _adopt(self) -> None:
        for tenant in tenants_of(self.state):
            if not self._take_up(tenant):
                self._others[tenant.name] = tenant

    def _take_up(self, tenant: Tenant) -> bool:
        """Adopts an existing tenant. False: it has another supervisor, or is too damaged."""
        try:
            lock = take(tenant.directory / SUPERVISOR_LOCK)
        except (BlockingIOError, FileNotFoundError):
            return False
        with contextlib.suppress(OSError):
            if tenant.directory.stat().st_mode & 0o044:  # as earlier releases made it
                FILES.own(tenant.directory, ENTERED)
        damage = None
        try:
            try:
                grant = read_grant(tenant.directory)
            except PenstockError as error:
                damage = f"{error.what}: {error.why}"
                grant = grant_of_pages(tenant, self.machine, self.devices)
            managed = ManagedTenant(
                tenant, grant, lock, self.tenant_table, adopted=True, damage=damage
            )
        except (PenstockError, PageError, OSError) as error:
            os.close(lock)
            self._is_damaged(tenant, f"{damage}; {error}" if damage else str(error))
            return False
        if damage is None:
            self._damaged.pop(tenant.name, None)
        else:
            self._is_damaged(tenant, damage)
        self.add(managed)
        record_event(tenant.directory, "adopted", by=self.node)
        go_on(self, managed)
        return True

    def _is_damaged(self, tenant: Tenant, why: str) -> None:
        if self._damaged.get(tenant.name) != why:
            record_event(tenant.directory, "damaged", reason=why)
        self._damaged[tenant.name] = why

    def _look_again(self, managed: ManagedTenant) -> None:
        """Uses a damaged tenant's grant again once somebody has repaired it."""
        try:
            grant = read_grant(managed.tenant.directory)
        except PenstockError:
            return
        with self.lock:
            same = [share.uuid for share in grant.devices] == [
                share.uuid for share in managed.grant.devices
            ]
            if same and self._managed_tenants.get(managed.tenant.name) is managed:
                managed.damage = None
                self._damaged.pop(managed.tenant.name, None)
                self.changed(managed, grant)
                record_event(managed.tenant.directory, "mended", by=self.node)

    def _let_go(self) -> None:
        self.turns.stop()
        self.handshakes.close()
        with self.lock:
            for managed in self._managed_tenants.values():
                managed.close()
            self._managed_tenants.clear()
            self.tenant_table.close()
            for descriptor in (self._own_lock, self._node_lock):
                if descriptor >= 0:
                    os.close(descriptor)
            self._own_lock = self._node_lock = -1
