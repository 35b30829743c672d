"""Comparison of what a compute pool wants of a tenant with what is there: the next step.

The agent compares again and again, after each list of orders, each change and each restart. So no
step has to be remembered, and a step that was half done when the agent was killed is found again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock.node.agent.pool_tenants import POOL_LABEL, claimed_of, revision_of

if TYPE_CHECKING:
    from penstock.node.agent.pool_orders import Part
    from penstock.node.tenants.grant import Grant

# "note" writes the revision that was carried out into the grant; "wait" is for something that is
# under way; "fail" cannot be carried out as long as nothing changes.
Need = Literal[
    "done", "note", "wait", "end", "suspend", "shrink", "resume", "grow", "grant", "fail"
]
# What makes room or stops launches comes before what takes room.
URGENT: frozenset[Need] = frozenset({"end", "suspend", "shrink"})


@dataclass(frozen=True)
class There:
    """What is there of an application."""

    grant: Grant
    suspension: str  # "", "launches", "releasing", "released" or "restoring", as in agent.proto
    problem: str  # why its memory was not released, or not restored yet
    host_bytes: int  # of its device memory that lies in host memory
    is_ending: bool


@dataclass(frozen=True)
class Step:
    """The next step for an application, and its state until that step is done."""

    need: Need
    state: str
    reason: str = ""


def compare(part: Part | None, there: There | None, pool: str) -> Step:
    """The next step. `part` is None if the pool wants nothing, `there` if nothing is there."""
    if there is None:
        return _of_missing(part)
    if there.grant.labels.get(POOL_LABEL) != pool:
        return Step("fail", "failed", _taken(there.grant))
    if part is None:
        return Step("wait" if there.is_ending else "end", "ending")
    return _of_wanted(part, there)


def _of_wanted(part: Part, there: There) -> Step:
    if there.is_ending:
        return Step("wait", "pending", "a former tenant of this name is being ended")
    if part.claimed_ns and claimed_of(there.grant) not in {0, part.claimed_ns}:
        return Step("end", "pending", "an ended application of this name is being ended here")
    if not _is_same_holder(part, there.grant):
        return Step("end", "pending", "a former tenant of this name, of another user, is ended")
    if part.suspended:
        return _suspended(part, there)
    return _running(part, there)


def _of_missing(part: Part | None) -> Step:
    if part is not None and part.suspended:
        return Step("fail", "failed", "the suspended tenant is not on this node any more")
    return Step("grant", "pending")


def _taken(grant: Grant) -> str:
    if POOL_LABEL in grant.labels:
        return f"a tenant of another pool has this name on the node, with user {grant.user}"
    return (
        f"a tenant that is not the pool's has this name on the node, with user {grant.user}; "
        f"end it (penstock revoke {grant.tenant}), or claim blocks under another name"
    )


def _is_same_holder(part: Part, grant: Grant) -> bool:
    """A user must not get a tenant whose processes and files are another user's."""
    if part.uid is None and part.user != grant.user:
        return False
    return part.process_uid == grant.uid


def _suspended(part: Part, there: There) -> Step:
    if there.suspension == "released":
        return Step(_done_or_note(part, there.grant), "suspended")
    if there.suspension == "releasing":
        return Step("wait", "suspending", there.problem)
    return Step("suspend", "suspending")


def _running(part: Part, there: There) -> Step:
    if there.suspension == "restoring":
        return Step("wait", "resuming", there.problem)
    if there.suspension:
        return Step("resume", "resuming")
    wanted, has = [one.uuid for one in part.shares], [one.uuid for one in there.grant.devices]
    if wanted != has:
        # The manager moves only what it has heard to be suspended. So this is a new application
        # with the name of one that ended while the agent did not run.
        return Step("end", "pending", "a former tenant of this name, on other devices, is ended")
    pairs = list(zip(part.shares, there.grant.devices, strict=True))
    if any(
        new.memory_bytes < old.memory_bytes or new.cores_permille < old.cores_permille
        for new, old in pairs
    ):
        return Step("shrink", "running")
    if part.mode != there.grant.mode or any(
        (new.memory_bytes, new.cores_permille) != (old.memory_bytes, old.cores_permille)
        for new, old in pairs
    ):
        return Step("grow", "running")
    return Step(_done_or_note(part, there.grant), "running")


def _done_or_note(part: Part, grant: Grant) -> Need:
    return "done" if revision_of(grant) == part.revision else "note"
