"""Callers of the pool: administrators, users of nodes whose agents pass calls on, and nodes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls. `owner`: the name under which the caller holds applications."""

    owner: str
    is_admin: bool = False
    user: str = ""
    uid: int | None = None
    node: str = ""  # the node that passes the call on
