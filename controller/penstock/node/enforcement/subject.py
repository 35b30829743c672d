"""Subject: a tenant as the agent describes it to enforcement."""

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
    """A tenant and how to recognise its processes. Pids are those of the agent's namespace."""

    tenant: Tenant
    grant: Grant
    on_exceed: OnExceed = field(default_factory=OnExceed)
    handshake: frozenset[Process] = frozenset()
    """Processes identified at its socket (SO_PEERCRED), which belong to it with descendants."""
    listens_since_ticks: int | None = None
    """When the socket opened, in ticks as in /proc/PID/stat; None if there is no socket."""
    parents: frozenset[Process] = frozenset()
    """Processes whose descendants belong to the tenant, such as its `penstock run`."""
    cgroups: tuple[str, ...] = ()
    """Cgroups of its containers, as in /proc/PID/cgroup, with all processes in or below them."""
    uid: int | None = None
    """The user whose processes may claim membership by environment; None for any user."""
    suspended: bool = False
    """Whether it was suspended by request, which enforcement never lifts."""

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
        """A subject with the policy and user of the grant."""
        # The grace is already in nanoseconds; validation would expect a duration with a unit.
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
        """The tenant's name."""
        return self.tenant.name
