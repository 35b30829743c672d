"""Managed tenant: the agent's state for one tenant, and when that tenant may end."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.node.agent.suspension import Suspension
from penstock.node.enforcement import Step, Subject
from penstock.node.supervision.shim_bypass import write_finding
from penstock.node.supervision.supervisor import Supervisor
from penstock.node.tenants.tenant_events import record_event
from penstock_shim.pages import PageError, read_usage

if TYPE_CHECKING:
    from penstock.node.agent.handshake_sockets import Handshakes
    from penstock.node.agent.memory_release import MemoryRelease
    from penstock.node.agent.peer import Watched
    from penstock.node.agent.revocation import Revocation
    from penstock.node.enforcement import Finding
    from penstock.node.supervision.tenant_table import TenantTable
    from penstock.node.tenants.grant import Grant
    from penstock.node.tenants.tenant import Tenant
    from penstock_shim.pages import UsageSnapshot

# How long the agent keeps a tenant without processes when it does not know the tenant's caller
# (because the agent was restarted): the tenant's first process may be about to start.
FIRST_PROCESS_NS = 10_000_000_000
REAP_PERIOD_NS = 2_000_000_000


class ManagedTenant:
    """One tenant of the agent, which holds the supervisor lock in the tenant's directory."""

    def __init__(
        self,
        tenant: Tenant,
        grant: Grant,
        lock: int,
        tenant_table: TenantTable,
        *,
        caller: Watched | None = None,
        adopted: bool = False,
        damage: str | None = None,
    ) -> None:
        """`damage`: why the grant cannot be read, if so; `grant` was then rebuilt from the pages.

        Raises:
            PageError: the tenant's quota page is unusable; the caller then still owns `lock`.
        """
        self.tenant = tenant
        self.grant = grant
        self._subject: Subject | None = None
        self.supervisor = Supervisor(
            tenant, tenant_table, adopted=adopted, reap_period_ns=REAP_PERIOD_NS
        )
        self.damage = damage
        self.problem: str | None = None
        self.heartbeat_ns: int | None = None  # time of the last heartbeat in the quota page
        self.since_ns = time.monotonic_ns()
        self.revocation: Revocation | None = None  # set once the tenant is revoked
        self.memory_release: MemoryRelease | None = None  # set once its memory is to be released
        # Held while the tenant is offered and reported to its owner; never taken while holding the
        # agent's lock.
        self.answering = threading.Lock()
        self.is_answered = adopted  # its owner has received a response
        self._lock = lock
        self._caller = caller if grant.lifetime == "processes" else None
        self._recorded: set[str] = set()
        self.findings: tuple[Finding, ...] = ()  # from the last poll of enforcement
        # The finding last written for `penstock ps`; "" before the first write.
        self._written: str | None = ""
        # Held while pages and descriptors are in use: a request may end the tenant in the middle of
        # an iteration, and a write to an unmapped page would crash the agent.
        self._using = threading.Lock()
        self._is_closed = False

    def supervise(self, now_ns: int) -> None:
        """Runs one iteration; a failure is recorded once and does not affect other tenants."""
        with self._using:
            if not self._is_closed:
                self._supervise(now_ns)

    def _supervise(self, now_ns: int) -> None:
        try:
            self.supervisor.supervise(now_ns)
            self.heartbeat_ns = now_ns
        except Exception as error:  # noqa: BLE001 - one bad tenant must not end the node's agent
            self.problem = f"{type(error).__name__}: {error}"
            if self.problem not in self._recorded:
                self._recorded.add(self.problem)
                record_event(self.tenant.directory, "supervision-failed", reason=self.problem)
        else:
            self.problem = None

    def check_whole(self) -> None:
        """Raises `PenstockError` if the grant is unreadable, since it then cannot be rewritten."""
        if self.damage is not None:
            raise PenstockError(
                f"tenant {self.tenant.name!r} cannot be changed", self.damage,
                "repair that file, or end the tenant with penstock revoke", reason="not-now",
            )  # fmt: skip

    def may_end(self, now_ns: int) -> bool:
        """Whether the tenant ends as soon as it has no processes."""
        if self.grant.lifetime == "until-revoked":
            return False
        caller = self._caller
        if caller is not None:
            return caller.has_ended()
        return now_ns - self.since_ns > FIRST_PROCESS_NS

    def subject(self, handshakes: Handshakes) -> Subject:
        """The tenant as enforcement sees it."""
        handshake = handshakes.processes(self.tenant.name)
        since_ticks = handshakes.listens_since_ticks(self.tenant.name)
        known = self._subject
        if (
            known is None
            or known.grant is not self.grant
            or known.handshake is not handshake
            or known.listens_since_ticks != since_ticks
        ):
            self._subject = Subject.of(
                self.tenant,
                self.grant,
                handshake=handshake,
                listens_since_ticks=since_ticks,
                parents=frozenset({self._caller.process} if self._caller else ()),
                suspended=self.grant.suspended,
            )
            return self._subject
        return known

    def take_findings(self, findings: tuple[Finding, ...]) -> None:
        """Stores the findings of enforcement, and writes them to disk for `penstock ps`."""
        self.findings = findings
        finding = self.finding if findings or self._written else None
        if finding != self._written:
            self._written = finding
            write_finding(self.tenant.directory, finding)

    @property
    def finding(self) -> str | None:
        """All current problems of the tenant as text, None if there are none."""
        supervisor = self.supervisor
        problems = [self.damage, self.problem, supervisor.page_problem, supervisor.finding]
        texts = [*(one for one in problems if one), *map(str, self.findings)]
        if self.revocation is not None:
            texts.append(self.revocation.finding)
        return "; ".join(texts) or None

    @property
    def is_held(self) -> bool:
        """Whether enforcement has suspended the tenant or some of its processes."""
        return any(one.step is Step.SUSPEND for one in self.findings)

    @property
    def suspension(self) -> Suspension:
        """Whether and how far it is suspended by an order."""
        problem = self.memory_release.problem if self.memory_release is not None else ""
        grant = self.grant
        host_bytes = grant.host_bytes if grant.memory != "device" else 0
        return Suspension(grant.suspension, host_bytes, problem)

    def holds_slots(self) -> bool:
        """Whether a process of the tenant holds a slot, as of the last poll."""
        # `supervisor.usage` may be None because a writer keeps the page locked.
        usage = self.supervisor.usage or self.last_usage()
        return usage is not None and bool(usage.slots)

    def last_usage(self) -> UsageSnapshot | None:
        """The usage page, read after the last process has ended; None if it cannot be read."""
        try:
            return read_usage(self.tenant.usage_page)
        except PageError:
            return None

    def close(self) -> None:
        """Closes the tenant's files once no iteration uses them; the tenant itself is unchanged."""
        with self._using:
            if self._is_closed:
                return
            self._is_closed = True
            self.supervisor.close()
            os.close(self._lock)
            self._caller = None
