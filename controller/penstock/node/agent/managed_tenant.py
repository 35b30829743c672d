"""A tenant that the agent looks after, and when it ends."""

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

# A tenant whose caller cannot be told any more (the agent was restarted) keeps its name for so long
# without a process: its first one may be about to start.
FIRST_PROCESS_NS = 10_000_000_000
REAP_PERIOD_NS = 2_000_000_000


class ManagedTenant:
    """One tenant of the agent's. Holds the supervisor's lock of its directory."""

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
        """Raises `PageError`: its quota page cannot be used; `lock` stays the caller's then.

        `damage`: why its grant cannot be read; `grant` is what its pages tell then.
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
        # Held while it is offered and its owner is told of it; never taken with the agent's lock.
        self.answering = threading.Lock()
        self.is_answered = adopted  # somebody was told that he has it
        self._lock = lock
        self._caller = caller if grant.lifetime == "processes" else None
        self._parents = frozenset({self._caller.process} if self._caller else ())
        self._said: set[str] = set()
        self.findings: tuple[Finding, ...] = ()  # of enforcement, as of its last look
        self._left: str | None = ""  # the finding as it was left for `penstock ps`; "": not yet
        # Held while pages and descriptors are used: an order may end the tenant in the middle of a
        # round, and who writes to a page that is not mapped any more ends the agent.
        self._using = threading.Lock()
        self._is_closed = False

    def look_after(self, now_ns: int) -> None:
        """One round; what fails is recorded once and disturbs nobody else."""
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
        """Raises `PenstockError` when its grant cannot be read: it cannot be written anew."""
        if self.damage is not None:
            raise PenstockError(
                f"tenant {self.tenant.name!r} cannot be changed", self.damage,
                "mend that file, or penstock revoke the tenant", reason="not-now",
            )  # fmt: skip

    def may_end(self, now_ns: int) -> bool:
        """Whether nothing but its processes keeps it, so that it ends when it has none."""
        if self.grant.lifetime == "until-revoked":
            return False
        caller = self._caller
        if caller is not None:
            return caller.has_ended()
        return now_ns - self.since_ns > FIRST_PROCESS_NS

    def subject(self, handshakes: Handshakes) -> Subject:
        """The tenant as enforcement is told of it."""
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
                parents=self._parents,
                suspended=self.grant.suspended,
            )
            return self._subject
        return known

    def take_findings(self, findings: tuple[Finding, ...]) -> None:
        """What enforcement found; `penstock ps` is told in the tenant's directory."""
        self.findings = findings
        finding = self.finding if findings or self._left else None
        if finding != self._left:
            self._left = finding
            write_finding(self.tenant.directory, finding)

    @property
    def finding(self) -> str | None:
        """All that is wrong with it now, in words; None: nothing."""
        supervisor = self.supervisor
        problems = [self.damage, self.problem, supervisor.page_problem, supervisor.finding]
        said = [*(one for one in problems if one), *map(str, self.findings)]
        if self.revocation is not None:
            said.append(self.revocation.finding)
        return "; ".join(said) or None

    @property
    def is_held(self) -> bool:
        """Whether enforcement keeps it, or processes of it, from going on."""
        return any(one.step is Step.SUSPEND for one in self.findings)

    def holds_slots(self) -> bool:
        """Whether a process of it has a slot, by the last look."""
        usage = self.supervisor.usage or self.last_usage()  # it may be kept shut for writing
        return usage is not None and bool(usage.slots)

    def last_usage(self) -> UsageSnapshot | None:
        """Its usage page as it is now, after its last process; None: it cannot be read."""
        try:
            return read_usage(self.tenant.usage_page)
        except PageError:
            return None

    def close(self) -> None:
        """Lets go of its files, after a round that uses them; the tenant stays as it is."""
        with self._using:
            if self._is_closed:
                return
            self._is_closed = True
            self.supervisor.close()
            os.close(self._lock)
            self._caller = None
