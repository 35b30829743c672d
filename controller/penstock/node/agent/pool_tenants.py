"""Tenants of a compute pool: the labels that mark them, and who may change them.

The manager of the pool decides about these tenants. A change by anybody else would be undone with
its next list, so it is refused while the node is in the pool. A node that has left its pool keeps
such tenants as ordinary ones, which their users and administrators may end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.node.agent.node import Node
    from penstock.node.agent.principal import Principal
    from penstock.node.tenants.grant import Grant

POOL_LABEL = "penstock.io/pool"  # the pool's identity
REVISION_LABEL = "penstock.io/pool-revision"  # of the order that was carried out last
CLAIMED_LABEL = "penstock.io/pool-claimed"  # when, in ns: tells applications of one name apart
LABELS = frozenset({POOL_LABEL, REVISION_LABEL, CLAIMED_LABEL})


def is_pools(grant: Grant) -> bool:
    """Whether the tenant is a compute pool's."""
    return POOL_LABEL in grant.labels


def revision_of(grant: Grant) -> int:
    """The revision of the order that was carried out last, 0 if the label is damaged."""
    return _number(grant, REVISION_LABEL)


def claimed_of(grant: Grant) -> int:
    """When its application was claimed, by the pool's clock; 0 if that is not known."""
    return _number(grant, CLAIMED_LABEL)


def _number(grant: Grant, label: str) -> int:
    text = grant.labels.get(label, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 20 else 0


def check_labels(labels: Mapping[str, str], caller: Principal) -> None:
    """Raises `PenstockError` if a caller other than the pool marks a tenant as the pool's."""
    forged = sorted(LABELS & labels.keys())
    if forged and not caller.is_pool:
        raise PenstockError(
            f"{caller.name} may not set the labels {', '.join(forged)}",
            "they mark the tenants of the compute pool", "choose other names for your own labels",
            reason="not-allowed",
        )  # fmt: skip


def check_may_order(grant: Grant, caller: Principal, node: Node) -> None:
    """Raises `PenstockError` if the tenant is the pool's and the caller is not."""
    if is_pools(grant) and node.is_in_pool and not caller.is_pool:
        raise PenstockError(
            f"tenant {grant.tenant!r} belongs to the compute pool",
            "only the pool's manager changes its quota, suspends it, or ends it",
            f"use penstock pool resize {grant.tenant}, or penstock pool release {grant.tenant}",
            reason="not-allowed",
        )
