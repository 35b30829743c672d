"""Member of a compute pool: brings the node's tenants to what the pool's manager wants.

A thread of its own compares the manager's newest list with the tenants, hands the steps that differ
to bounded threads, and compares again after each step. Steps that make room or stop launches have
threads of their own, so that nothing delays them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.node.agent.pool_comparison import URGENT, Step, compare
from penstock.node.agent.pool_orders import NodeState, PartState
from penstock.node.agent.pool_steps import close_gate, there_of
from penstock.node.agent.pool_tenants import is_pools, revision_of
from penstock_shim.pages import PageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.node.agent.managed_tenant import ManagedTenant
    from penstock.node.agent.pool_comparison import Need, There
    from penstock.node.agent.pool_devices import PoolDevices
    from penstock.node.agent.pool_liveness import PoolLiveness
    from penstock.node.agent.pool_membership import PoolMembership
    from penstock.node.agent.pool_orders import Part, PoolCardState, PoolOrders
    from penstock.node.agent.pool_steps import PoolSteps
    from penstock.node.agent.tenant_registry import TenantRegistry

THREADS = 8  # for steps that make room, and as many for the others
RESTS_S, WAITS_S = 0.25, 0.02  # between comparisons, at rest and while something is under way
SLOW_WAITS_S, LONG_NS = 0.1, 2_000_000_000  # ... and while it has been under way for so long
FIRST_RETRY_NS, LONGEST_RETRY_NS = 20_000_000, 1_000_000_000
CARDS_PERIOD_NS, ALIVE_PERIOD_NS = 1_000_000_000, 200_000_000
LEAST_PAUSE_S = 0.004  # between comparisons, however many steps end
# Reasons for which a step may succeed later although the orders stay the same.
PASSING = frozenset({"not-enough-left", "not-now", "unavailable"})
# Of a suspension: without room for its memory on the host the pool has to choose another victim.
NEVER = PASSING - {"not-enough-left"}


@dataclass(eq=False)
class _Work:
    """What the agent has tried for an application since its newest order."""

    # Of the order: its revision, and whether it is suspended; or the grace in which it ends.
    key: tuple[int, bool] | int | None
    since_ns: int
    is_running: bool = False  # a thread carries a step out
    problem: str = ""  # why the last step was not possible
    is_final: bool = False  # ... and will not be
    retries: int = 0
    retry_at_ns: int = 0
    took_ns: int = 0  # from the order to its end
    tried: Need | None = None  # the last step that was accepted


class PoolMember:
    """Carries out a pool's orders from `start` to `stop`. Thread-safe."""

    def __init__(
        self,
        registry: TenantRegistry,
        membership: PoolMembership,
        devices: PoolDevices,
        steps: PoolSteps,
        liveness: PoolLiveness,
        *,
        report: Callable[..., None],
    ) -> None:
        """`report`: records problems that concern the whole node."""
        self.membership = membership
        self.liveness = liveness
        self._registry = registry
        self._devices = devices
        self._steps = steps
        self._report = report
        self._lock = threading.Lock()
        self._orders: PoolOrders | None = None
        self._works: dict[str, _Work] = {}
        self._cards: tuple[PoolCardState, ...] = ()
        self._cards_at_ns = self._alive_at_ns = 0
        self._alive: tuple[str, ...] = ()
        self._state: NodeState | None = None
        self._problem: str | None = None
        self._wake = threading.Event()
        self._is_stopping = False
        self._listeners: list[Callable[[], None]] = []
        self._urgent = ThreadPoolExecutor(THREADS, "pool-urgent")
        self._others = ThreadPoolExecutor(THREADS, "pool")
        self._thread = threading.Thread(target=self._run, name="pool-member", daemon=True)

    def start(self) -> None:
        """Describes the node, then starts the thread."""
        self._iterate()
        self._thread.start()

    def stop(self) -> None:
        """Stops; tenants stay as they are."""
        self._is_stopping = True
        self._wake.set()
        self._thread.join()
        for threads in (self._urgent, self._others):
            threads.shutdown(wait=True, cancel_futures=True)
        self.liveness.stop()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Calls `listener` from the thread whenever `state` has changed."""
        self._listeners.append(listener)

    def take(self, orders: PoolOrders) -> None:
        """Takes a list of orders in place of the one before.

        Raises:
            PenstockError: the list is of another pool or of a lower term, or is invalid.
            OSError: its term cannot be recorded; the orders before it stay in force.
        """
        for part in orders.parts:
            part.check()
        self.membership.accept(orders)
        with self._lock:
            self._orders = orders
        self._wake.set()

    def state(self) -> NodeState:
        """The node as of the last comparison, with the use of its tenants as of now."""
        with self._lock:
            state = self._state
        if state is None:
            raise RuntimeError("the member has not started")
        return state

    def _run(self) -> None:
        wait_s = 0.0
        while not self._is_stopping:
            self._wake.wait(wait_s)
            self._wake.clear()
            try:
                wait_s = self._iterate()
            except Exception as error:  # noqa: BLE001 - the next comparison starts anew
                wait_s = RESTS_S
                self._report_problem(f"{type(error).__name__}: {error}")
            else:
                self._report_problem(None)
            time.sleep(LEAST_PAUSE_S)

    def _report_problem(self, problem: str | None) -> None:
        if problem != self._problem:
            self._problem = problem
            self._report("pool-failing" if problem else "pool works again", reason=problem)

    def _iterate(self) -> float:
        """Compares once and starts the steps; returns how long to wait for the next comparison."""
        now_ns = time.monotonic_ns()
        with self._lock:
            orders = self._orders
        wanted = {part.application: part for part in orders.parts} if orders else {}
        tenants = self._tenants(wanted)
        names = sorted({*wanted, *(n for n, one in tenants.items() if is_pools(one.grant))})
        steps: list[tuple[Need, str]] = []
        parts = []
        wait_s = RESTS_S
        for name in names:
            part, managed = wanted.get(name), tenants.get(name)
            work = self._work(name, part, orders, now_ns)
            if orders is None:  # only reports until the manager has said what it wants
                step = _as_it_is(managed)
            else:
                step = self._next(part, managed, work, now_ns)
                if self._is_due(step, work, now_ns):
                    steps.append((step.need, name))
            parts.append(self._part_state(name, part, managed, step, work))
            if step.need not in {"done", "fail"} and not work.is_final:
                wait_s = min(wait_s, self._pause_s(step, work, now_ns))
        self._start_all(steps, orders, tenants)
        self._forget_works(names)
        self._finish(orders, parts, tenants, now_ns)
        return wait_s

    def _next(
        self, part: Part | None, managed: ManagedTenant | None, work: _Work, now_ns: int
    ) -> Step:
        """The next step for an application."""
        there = there_of(managed) if managed is not None else None
        if there is not None and not work.is_running:
            self._look_at_memory(part, there, work, now_ns)
        step = compare(part, there, self.membership.record.pool)
        if part is None and step.need == "wait" and work.key is not None and work.tried != "end":
            return Step("end", step.state)  # it ends already, and is to end sooner now
        return step

    def _start_all(
        self,
        steps: list[tuple[Need, str]],
        orders: PoolOrders | None,
        tenants: Mapping[str, ManagedTenant],
    ) -> None:
        """Closes the gates of those to be suspended, then starts all steps, urgent ones first."""
        wanted = {part.application: part for part in orders.parts} if orders else {}
        for need, name in steps:
            # The program of a virtual card takes its data from its cards first.
            is_spread = name in wanted and wanted[name].is_spread
            if need == "suspend" and not is_spread and not self._works[name].problem:
                close_gate(tenants[name])
        graces_ns = orders.graces_ns if orders else {}
        for need, name in sorted(steps, key=lambda one: one[0] not in URGENT):
            self._start(need, name, wanted.get(name), graces_ns.get(name))

    def _forget_works(self, names: list[str]) -> None:
        """Forgets the work on what is neither wanted nor there."""
        with self._lock:
            for name in self._works.keys() - set(names):
                if not self._works[name].is_running:
                    del self._works[name]

    def _tenants(self, wanted: Mapping[str, Part]) -> dict[str, ManagedTenant]:
        """The tenants that concern the pool, by name."""
        return {
            one.tenant.name: one
            for one in self._registry.managed_tenants()
            if one.tenant.name in wanted or is_pools(one.grant)
        }

    def _work(self, name: str, part: Part | None, orders: PoolOrders | None, now_ns: int) -> _Work:
        key: tuple[int, bool] | int | None = None
        if part is not None:
            key = (part.revision, part.suspended)
        elif orders is not None:
            key = orders.graces_ns.get(name)
        with self._lock:
            work = self._works.get(name)
            if work is None or (work.key != key and not work.is_running):
                work = self._works[name] = _Work(key, now_ns)
            return work

    @staticmethod
    def _look_at_memory(part: Part | None, there: There, work: _Work, now_ns: int) -> None:
        """Notes that the driver refused to release or to restore memory, after it was accepted.

        A tenant whose memory was not released goes on by itself, so the order has failed for good.
        Memory that was not restored stays on the host, and is tried again.
        """
        if part is None or not there.problem:
            return
        if work.tried == "suspend" and part.suspended and there.suspension in {"", "restoring"}:
            work.problem, work.is_final = there.problem, True
        elif work.tried == "resume" and there.suspension == "released":
            work.tried, work.problem = None, there.problem
            work.retry_at_ns = now_ns + (FIRST_RETRY_NS << min(work.retries, 6))
            work.retries += 1

    @staticmethod
    def _is_due(step: Step, work: _Work, now_ns: int) -> bool:
        if step.need in {"done", "wait", "fail"} or work.is_running:
            return False
        return not work.is_final and now_ns >= work.retry_at_ns

    @staticmethod
    def _pause_s(step: Step, work: _Work, now_ns: int) -> float:
        """How long the next comparison may wait; a step that ends wakes the thread by itself."""
        if work.is_running:
            return RESTS_S
        if step.need == "wait":
            return WAITS_S if now_ns - work.since_ns < LONG_NS else SLOW_WAITS_S
        return max(WAITS_S, (work.retry_at_ns - now_ns) / 1e9)

    def _start(self, need: Need, name: str, part: Part | None, grace_ns: int | None) -> None:
        with self._lock:
            work = self._works[name]
            work.is_running = True
        threads = self._urgent if need in URGENT else self._others
        with contextlib.suppress(RuntimeError):  # the agent is stopping
            threads.submit(self._carry_out, need, name, part, grace_ns, work)

    def _carry_out(
        self, need: Need, name: str, part: Part | None, grace_ns: int | None, work: _Work
    ) -> None:
        problem, is_final = "", False
        try:
            self._steps.carry_out(need, name, part, self.membership.record.pool, grace_ns)
        except PenstockError as error:
            problem = str(error)
            is_final = error.reason not in (NEVER if need == "suspend" else PASSING)
            is_final = is_final and need != "end"
        except (OSError, PageError) as error:  # a full disk, or a page that is being repaired
            problem = str(error)
        except Exception as error:  # noqa: BLE001 - reported, and the other tenants go on
            problem, is_final = f"{type(error).__name__}: {error}", True
        with self._lock:
            work.is_running = False
            work.problem, work.is_final = problem, is_final
            if problem:
                pause_ns = min(LONGEST_RETRY_NS, FIRST_RETRY_NS << min(work.retries, 10))
                work.retries += 1
                work.retry_at_ns = time.monotonic_ns() + pause_ns
            else:
                if need != work.tried:
                    work.retries = work.retry_at_ns = 0
                work.tried = need
                for other in self._works.values():  # there may be room now
                    other.retry_at_ns = 0
        self._wake.set()

    def _part_state(
        self,
        name: str,
        part: Part | None,
        managed: ManagedTenant | None,
        step: Step,
        work: _Work,
    ) -> PartState:
        carried_out = revision_of(managed.grant) if managed is not None else 0
        if part is not None and step.need in {"done", "note", "fail"}:
            carried_out = part.revision
            if work.tried is not None and not work.took_ns:
                work.took_ns = time.monotonic_ns() - work.since_ns
        state, reason = step.state, step.reason or work.problem
        if part is not None and work.is_final:
            state, carried_out = "failed", part.revision
        if managed is None:
            return PartState(name, carried_out, state, reason)
        usage = managed.supervisor.usage
        if state == "running" and not reason:
            reason = self._findings(managed)
        return PartState(
            name,
            carried_out,
            state,
            reason,
            host_bytes=managed.suspension.host_bytes,
            device_bytes=sum(one.total_bytes for one in usage.devices) if usage else 0,
            processes=len(usage.slots) if usage else 0,
            took_ns=work.took_ns,
        )

    def _findings(self, managed: ManagedTenant) -> str:
        sick = [self._devices.health_of(share.uuid) for share in managed.grant.devices]
        return "; ".join(one for one in [*sick, managed.finding] if one)

    def _finish(
        self,
        orders: PoolOrders | None,
        parts: list[PartState],
        tenants: Mapping[str, ManagedTenant],
        now_ns: int,
    ) -> None:
        """Publishes the state, and tells the listeners if something has changed."""
        if not self._cards or now_ns - self._cards_at_ns >= CARDS_PERIOD_NS:
            self._cards, self._cards_at_ns = self._devices.cards(), now_ns
            self.liveness.look(
                {name: one for name, one in tenants.items() if is_pools(one.grant)},
                {part.application for part in orders.parts} if orders else set(),
            )
        if now_ns - self._alive_at_ns >= ALIVE_PERIOD_NS:
            pools = {name: one for name, one in tenants.items() if is_pools(one.grant)}
            self._alive, self._alive_at_ns = self.liveness.alive(pools), now_ns
        record = self.membership.record
        state = NodeState(
            pool=record.pool,
            term=record.term,
            seen=orders.number if orders else 0,
            cards=self._cards,
            parts=tuple(parts),
            alive=self._alive,
            precision=self._devices.options.precision,
        )
        with self._lock:
            has_changed = state != self._state
            self._state = state
        if has_changed:
            for listener in self._listeners:
                listener()


def _as_it_is(managed: ManagedTenant | None) -> Step:
    """The state of a tenant before the manager has said what it wants of it."""
    if managed is None or managed.revocation is not None:
        return Step("done", "ending")
    states = {"releasing": "suspending", "released": "suspended", "restoring": "resuming"}
    return Step("done", states.get(there_of(managed).suspension, "running"))
