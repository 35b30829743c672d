"""Managed tenant: the agent's state of one tenant, and when it may end."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.node.enforcement import Step, Subject
from penstock.node.supervision.shim_bypass import write_finding
from penstock.node.supervision.supervisor import Supervisor
from penstock.node.tenants.tenant_events import record_event
from penstock_shim.pages import PageError, read_usage

if TYPE_CHECKING:
    from penstock.node.agent.handshake_sockets import Handshakes
    from penstock.node.agent.peer import Watched
    from penstock.node.agent.revocation import Revocation
    from penstock.node.enforcement import Finding
    from penstock.node.supervision.tenant_table import TenantTable
    from penstock.node.tenants.grant import Grant
    from penstock.node.tenants.tenant import Tenant
    from penstock_shim.pages import UsageSnapshot

# How long a tenant without a process stays when its caller is no longer known (the agent was
# restarted): its first process may be about to start.
FIRST_PROCESS_NS = 10_000_000_000
REAP_PERIOD_NS = 2_000_000_000


class ManagedTenant:
    """One tenant of the agent. Holds the supervisor lock in the tenant's directory."""

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
        """Raises `PageError`: its quota page is unusable; the caller then still owns `lock`.

        `damage`: why its grant cannot be read; `grant` is then reconstructed from its pages.
        """
        self.tenant = tenant
        self.grant = grant
        self._subject: Subject | None = None
        self.supervisor = Supervisor(
            tenant, tenant_table, adopted=adopted, reap_period_ns=REAP_PERIOD_NS
        )
        self.damage = damage
        self.problem: str | None = None
        self.looked_after_ns: int | None = None  # when its page got its last heartbeat
        self.since_ns = time.monotonic_ns()
        self.revocation: Revocation | None = None  # since it was revoked
        # Held while the tenant is offered and reported; never taken with the agent's lock held.
        self.answering = threading.Lock()
        self.is_answered = adopted  # its owner got an answer
        self._lock = lock
        self._caller = caller if grant.lifetime == "processes" else None
        self._said: set[str] = set()
        self.findings: tuple[Finding, ...] = ()  # of enforcement, as of its last poll
        self._left: str | None = ""  # the finding as last written for `penstock ps`; "": not yet
        # Held while pages and descriptors are in use: a request may end the tenant in the middle of
        # an iteration, and a write to an unmapped page would crash the agent.
        self._using = threading.Lock()
        self._is_closed = False

    def look_after(self, now_ns: int) -> None:
        """One iteration; a failure is recorded once and affects no other tenant."""
        with self._using:
            if not self._is_closed:
                self._look_after(now_ns)

    def _look_after(self, now_ns: int) -> None:
        try:
            self.supervisor.look_after(now_ns)
            self.looked_after_ns = now_ns
        except Exception as error:  # noqa: BLE001 - one bad tenant must not end the node's agent
            self.problem = f"{type(error).__name__}: {error}"
            if self.problem not in self._said:
                self._said.add(self.problem)
                record_event(self.tenant.directory, "supervision-failed", reason=self.problem)
        else:
            self.problem = None

    def check_whole(self) -> None:
        """Raises `PenstockError` when its grant cannot be read, and so cannot be rewritten."""
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
        """Stores enforcement's findings, also in the tenant's directory for `penstock ps`."""
        self.findings = findings
        finding = self.finding if findings or self._left else None
        if finding != self._left:
            self._left = finding
            write_finding(self.tenant.directory, finding)

    @property
    def finding(self) -> str | None:
        """All current problems of the tenant as text; None: there are none."""
        supervisor = self.supervisor
        problems = [self.damage, self.problem, supervisor.page_problem, supervisor.finding]
        said = [*(one for one in problems if one), *map(str, self.findings)]
        if self.revocation is not None:
            said.append(self.revocation.finding)
        return "; ".join(said) or None

    @property
    def is_held(self) -> bool:
        """Whether enforcement has suspended it or some of its processes."""
        return any(one.step is Step.SUSPEND for one in self.findings)

    def holds_slots(self) -> bool:
        """Whether a process of it has a slot, as of the last poll."""
        usage = self.supervisor.usage or self.last_usage()  # a writer may keep the page locked
        return usage is not None and bool(usage.slots)

    def last_usage(self) -> UsageSnapshot | None:
        """Its usage page after its last process has ended; None: it cannot be read."""
        try:
            return read_usage(self.tenant.usage_page)
        except PageError:
            return None

    def close(self) -> None:
        """Closes its files once no iteration uses them; the tenant itself stays as it is."""
        with self._using:
            if self._is_closed:
                return
            self._is_closed = True
            self.supervisor.close()
            os.close(self._lock)
            self._caller = None
