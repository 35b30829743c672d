"""Who gives an order, and what they may order."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.model import PenstockError

if TYPE_CHECKING:
    from penstock.node.grant import Grant


@dataclass(frozen=True)
class Caller:
    """Somebody whom the kernel (a local socket) or a certificate (TLS) has named."""

    name: str  # for records: a user's name, or the certificate's
    uid: int | None  # on this machine; None: elsewhere
    pid: int | None  # of the process that called; None: elsewhere
    is_admin: bool  # root, the agent's own user, or who holds a certificate of the node's CA

    @classmethod
    def local(cls, uid: int, pid: int) -> Caller:
        """The process `pid` of user `uid`, as SO_PEERCRED names it."""
        return cls(user_name(uid), uid, pid, is_admin=uid in (0, os.geteuid()))

    @classmethod
    def remote(cls, name: str) -> Caller:
        """Whoever holds the certificate of that name."""
        return cls(name, None, None, is_admin=True)

    def check_may_change(self, grant: Grant) -> None:
        """Raises `PenstockError` unless the tenant is the caller's own, or the caller an admin."""
        if self.is_admin or (self.uid is not None and self.uid == grant.uid):
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


def user_name(uid: int) -> str:
    """The name of a user of this machine; the number where there is none, as in containers."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
