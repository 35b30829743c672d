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


@dataclass(frozen=True)
class Principal:
    """A caller, identified by the kernel (local socket) or by a certificate (TLS)."""

    name: str  # for records: the name of the user or of the certificate
    uid: int | None  # on this machine; None: remote
    pid: int | None  # of the calling process; None: remote
    is_admin: bool  # root, the agent's own user, or the holder of a certificate of the CA
    owner_uid: int | None = None  # the person whose limits hold for a local user, see `person`
    process: Watched | None = field(default=None, compare=False)  # `pid` while it has not ended

    @classmethod
    def local(cls, uid: int, pid: int, people: People, process: Watched | None = None) -> Principal:
        """The process `pid` of user `uid`, from SO_PEERCRED. Blocks on account look-ups."""
        if cls.is_admins(uid):
            return cls(people.name_of(uid), uid, pid, is_admin=True, process=process)
        owner = people.owner_of(uid, pid)
        name = people.name_of(uid if owner == NOBODY else owner)
        return cls(name, uid, pid, is_admin=False, owner_uid=owner, process=process)

    @staticmethod
    def is_admins(uid: int) -> bool:
        """Whether a user of this machine is an administrator: root, or the agent's own."""
        return uid in (0, os.geteuid())

    @classmethod
    def remote(cls, name: str) -> Principal:
        """The holder of the certificate with that name."""
        return cls(name, None, None, is_admin=True)

    @property
    def person(self) -> int | str:
        """The person whose limits hold: all uids of one person count together."""
        if self.uid is None:
            return self.name
        return self.uid if self.owner_uid is None else self.owner_uid

    def check_may_change(self, grant: Grant) -> None:
        """Raises `PenstockError` unless the caller is an admin, or owns the tenant.

        A subordinate uid's tenants belong to the uid's owner, too.
        """
        if self.is_admin or (self.uid is not None and self.uid in (grant.uid, grant.owner_uid)):
            return
        raise PenstockError(
            f"{self.name} may not change tenant {grant.tenant!r}",
            f"it is {grant.user}'s",
            f"ask {grant.user} or an administrator",
            reason="not-yours",
        )

    def check_may_lift(self, grant: Grant, what: str) -> None:
        """Raises `PenstockError` for a user's tenant that an administrator has suspended.

        `what`: the refused change, such as "resumed".
        """
        if grant.suspended and grant.suspended_by and not self.is_admin:
            raise PenstockError(
                f"tenant {grant.tenant!r} cannot be {what}",
                f"{grant.suspended_by} has suspended it as an administrator",
                f"ask {grant.suspended_by}; penstock events {grant.tenant} says why",
                reason="not-allowed",
            )

    def check_is_admin(self, what: str) -> None:
        """Raises `PenstockError` unless the caller is an admin. `what`: "to oversubscribe"."""
        if not self.is_admin:
            raise PenstockError(
                f"{self.name} is not allowed {what}", "only an administrator is",
                "ask for less, or ask an administrator", reason="not-allowed",
            )  # fmt: skip
