"""Principal: the authenticated caller of a request, and its permissions."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.node.agent.person import NOBODY

if TYPE_CHECKING:
    from penstock.node.agent.peer import Watched
    from penstock.node.agent.person import People
    from penstock.node.tenants.grant import Grant

NODE = "penstock:node:"  # begins the name in a node's certificate


@dataclass(frozen=True)
class Principal:
    """A caller, identified by the kernel (local socket) or by a certificate (TLS)."""

    name: str  # the user or certificate, as named in records
    uid: int | None  # on this machine; None if remote
    pid: int | None  # of the calling process; None if remote
    is_admin: bool  # true for root, the agent's user, and certificates of the CA but nodes'
    owner_uid: int | None = None  # the person whose limits apply to a local user (see `person`)
    process: Watched | None = field(default=None, compare=False)  # process `pid`, while alive
    is_pool: bool = False  # the manager of the node's compute pool, through the agent itself

    @classmethod
    def local(cls, uid: int, pid: int, people: People, process: Watched | None = None) -> Principal:
        """The local caller with these SO_PEERCRED ids. May block on account look-ups."""
        if cls.is_admins(uid):
            return cls(people.name_of(uid), uid, pid, is_admin=True, process=process)
        owner = people.owner_of(uid, pid)
        name = people.name_of(uid if owner == NOBODY else owner)
        return cls(name, uid, pid, is_admin=False, owner_uid=owner, process=process)

    @staticmethod
    def is_admins(uid: int) -> bool:
        """Whether the uid is an administrator's: root, or the user that runs the agent."""
        return uid in (0, os.geteuid())

    @classmethod
    def remote(cls, name: str) -> Principal:
        """The holder of the certificate with that name; other nodes may order nothing here."""
        return cls(name, None, None, is_admin=not name.startswith(NODE))

    @classmethod
    def pool(cls) -> Principal:
        """The manager of the compute pool that the node is in."""
        return cls("pool", None, None, is_admin=True, is_pool=True)

    @property
    def person(self) -> int | str:
        """The person whose limits apply; all uids of a person count together."""
        if self.uid is None:
            return self.name
        return self.uid if self.owner_uid is None else self.owner_uid

    def check_may_change(self, grant: Grant) -> None:
        """Checks that the caller is an administrator or owns the tenant.

        A tenant of a subordinate uid belongs to the owner of that uid, too.

        Raises:
            PenstockError: the tenant belongs to another user.
        """
        if self.is_admin or (self.uid is not None and self.uid in (grant.uid, grant.owner_uid)):
            return
        raise PenstockError(
            f"{self.name} may not change tenant {grant.tenant!r}",
            f"it belongs to {grant.user}",
            f"ask {grant.user} or an administrator",
            reason="not-yours",
        )

    def check_may_lift(self, grant: Grant, what: str) -> None:
        """Checks that the caller may lift the tenant's suspension, if an administrator set it.

        `what`: the change to name in the refusal, such as "resumed".

        Raises:
            PenstockError: an administrator has suspended the tenant, and the caller is a user.
        """
        if grant.suspended and grant.suspended_by and not self.is_admin:
            raise PenstockError(
                f"tenant {grant.tenant!r} cannot be {what}",
                f"{grant.suspended_by} has suspended it as an administrator",
                f"ask {grant.suspended_by}; penstock events {grant.tenant} shows the reason",
                reason="not-allowed",
            )

    def check_is_admin(self, what: str) -> None:
        """Raises `PenstockError` if the caller is no administrator. `what`: "to oversubscribe"."""
        if not self.is_admin:
            raise PenstockError(
                f"{self.name} is not allowed {what}", "only an administrator is allowed to do that",
                "leave that out of the request, or ask an administrator", reason="not-allowed",
            )  # fmt: skip
