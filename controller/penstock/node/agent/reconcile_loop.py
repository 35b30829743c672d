"""Reconcile loop: supervises the tenants and runs periodic tasks, ten times a second."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.node.supervision.supervisor import PERIOD_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.node.agent.housekeeping import Housekeeping
    from penstock.node.agent.tenant_registry import TenantRegistry
    from penstock.node.supervision.tenant_table import TenantTable

TENANTS_PER_ITERATION = 50  # unchanged tenants to supervise per iteration, so that …
ITERATIONS_PER_SECOND = 10  # … each is supervised at least once a second
REMEMBERED_NS = 60_000_000_000  # period over which the slowest iteration is reported


@dataclass(eq=False)
class ReconcileLoop:
    """A loop that runs in its own thread, from `start` to `stop`."""

    registry: TenantRegistry
    tenant_table: TenantTable
    housekeeping: Housekeeping
    report: Callable[..., None]

    def __post_init__(self) -> None:
        # Each iteration calls these in order with its time (CLOCK_MONOTONIC, ns); they return
        # whether they were due.
        self.tasks: Sequence[Callable[[int], bool]] = ()
        self._problems: dict[str, str | None] = {}  # by task: why its last run failed, if it did
        self._number = 0
        self._times: deque[tuple[int, int]] = deque()  # of each iteration: end and duration
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def start(self) -> None:
        """Runs one iteration, then starts the thread. Raises whatever the iteration raises."""
        self._iterate()
        self._thread = threading.Thread(target=self._run, name="reconcile", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the loop after the current iteration."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def slowest_iteration_ns(self) -> int:
        """The longest iteration of the last minute, in nanoseconds."""
        return max((took for _, took in list(self._times)), default=0)

    def last_iteration_ns(self) -> int:
        """The duration of the last iteration, in nanoseconds."""
        return self._times[-1][1] if self._times else 0

    def is_failing(self, task: type) -> bool:
        """Whether the periodic task of this class failed at its last run."""
        return self._problems.get(task.__name__) is not None

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            began = time.monotonic()
            self._iterate()
            due = max(due + PERIOD_S, began + PERIOD_S / 2)

    def _iterate(self) -> None:
        began_ns = time.monotonic_ns()
        with self.registry.lock:
            managed_tenants = self.registry.managed_tenants()
            directories, by_directory = self.registry.directories()
        self.tenant_table.sample(began_ns, directories)
        parts = max(1, min(ITERATIONS_PER_SECOND, len(managed_tenants) // TENANTS_PER_ITERATION))
        self._number += 1
        due = dict.fromkeys(managed_tenants[self._number % parts :: parts])
        concerned = map(by_directory.get, self.tenant_table.concerned)
        due.update(dict.fromkeys(managed for managed in concerned if managed is not None))
        for managed in due:
            managed.supervise(began_ns)
        for task in self.tasks:
            self._run_task(task, began_ns)
        self.housekeeping.run(managed_tenants, began_ns)
        ended_ns = time.monotonic_ns()
        self._times.append((ended_ns, ended_ns - began_ns))
        while self._times[0][0] < ended_ns - REMEMBERED_NS:
            self._times.popleft()

    def _run_task(self, task: Callable[[int], bool], now_ns: int) -> None:
        """Runs one task; the next iteration retries a failed task, and other tasks still run."""
        try:
            was_due = task(now_ns)
        except Exception as error:  # noqa: BLE001 - the loop must survive any task
            self._report_problem(type(task).__name__, f"{type(error).__name__}: {error}")
        else:
            if was_due:
                self._report_problem(type(task).__name__, None)

    def _report_problem(self, task: str, problem: str | None) -> None:
        """Reports once when a periodic task starts to fail, and once when it works again."""
        if problem == self._problems.get(task):
            return
        self._problems[task] = problem
        self.report("failing" if problem else "works again", task=task, reason=problem)
