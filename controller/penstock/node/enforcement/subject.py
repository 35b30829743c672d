"""What the agent tells enforcement of one tenant."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.policy.schema import OnExceed

if TYPE_CHECKING:
    from penstock.node.enforcement.process import Process
    from penstock.node.tenants.grant import Grant
    from penstock.node.tenants.tenant import Tenant


@dataclass(frozen=True)
class Subject:
    """A tenant with what the kernel says of who it is. Pids are those of the agent's namespace."""

    tenant: Tenant
    grant: Grant
    on_exceed: OnExceed = field(default_factory=OnExceed)
    handshake: frozenset[Process] = frozenset()
    """Processes that its socket named (SO_PEERCRED): they and what they start."""
    listens_since_ticks: int | None = None
    """Who started later, as in /proc/PID/stat, could shake hands; None: nobody listens."""
    parents: frozenset[Process] = frozenset()
    """What these start is the tenant's, they themselves are not: its `penstock run`."""
    cgroups: tuple[str, ...] = ()
    """Paths as in /proc/PID/cgroup, of its containers: whatever is in them or below."""
    uid: int | None = None
    """Whose processes may say by their environment that they are the tenant's; None: anybody's."""
    suspended: bool = False
    """By an operator's order: enforcement never lifts that."""

    @classmethod
    def of(
        cls,
        tenant: Tenant,
        grant: Grant,
        *,
        handshake: frozenset[Process] = frozenset(),
        listens_since_ticks: int | None = None,
        parents: frozenset[Process] = frozenset(),
        cgroups: tuple[str, ...] = (),
        suspended: bool = False,
    ) -> Subject:
        """A tenant with the policy and the user that its grant names."""
        # As exact nanoseconds: OnExceed would read a duration with its unit.
        policy = OnExceed.model_construct(measured=grant.measured, grace=grant.grace_ns)
        return cls(
            tenant,
            grant,
            policy,
            handshake=handshake,
            listens_since_ticks=listens_since_ticks,
            parents=parents,
            cgroups=cgroups,
            uid=grant.uid,
            suspended=suspended,
        )

    @property
    def name(self) -> str:
        """The tenant's."""
        return self.tenant.name
