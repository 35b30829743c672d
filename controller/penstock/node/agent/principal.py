"""Who gives an order, and what they may order."""

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
    """Somebody whom the kernel (a local socket) or a certificate (TLS) has named."""

    name: str  # for records: a user's name, or the certificate's
    uid: int | None  # on this machine; None: elsewhere
    pid: int | None  # of the process that called; None: elsewhere
    is_admin: bool  # root, the agent's own user, or who holds a certificate of the node's CA
    owner_uid: int | None = None  # whose limits hold for a user of this machine, see `person`
    process: Watched | None = field(default=None, compare=False)  # `pid` while it has not ended

    @classmethod
    def local(cls, uid: int, pid: int, people: People, process: Watched | None = None) -> Principal:
        """The process `pid` of user `uid`, as SO_PEERCRED names it. Blocks on account look-ups."""
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
        """Whoever holds the certificate of that name."""
        return cls(name, None, None, is_admin=True)

    @property
    def person(self) -> int | str:
        """Whom limits hold for: with one person all of its uids are counted."""
        if self.uid is None:
            return self.name
        return self.uid if self.owner_uid is None else self.owner_uid

    def check_may_change(self, grant: Grant) -> None:
        """Raises `PenstockError` unless the caller is an admin, or the tenant the caller's own.

        What a subordinate uid has is its owner's, too.
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
        """Raises `PenstockError` for a user whose tenant an administrator has suspended.

        `what` is not done then: "resumed".
        """
        if grant.suspended and grant.suspended_by and not self.is_admin:
            raise PenstockError(
                f"tenant {grant.tenant!r} is not {what}",
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
