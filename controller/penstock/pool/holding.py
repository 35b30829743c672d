"""Holdings: what the manager keeps of each application beside the pool's own record.

The pool's record says which blocks an application has; its holding says who holds it, what its
nodes were told to do, and how far they have come.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from penstock.scheduling.blocks.run import Run

if TYPE_CHECKING:
    from collections.abc import Mapping

# waiting: in the queue. preparing: it gets its blocks once others have suspended. starting: its
# nodes were told to prepare it. unsuspending: it could not be suspended, and is to go on.
# moving-out: its nodes suspend it for a move; moving-in: they resume it on its new blocks;
# moving-back: they resume it on the old ones. ending: its nodes were told to end it.
State = Literal[
    "waiting", "preparing", "starting", "running", "suspending", "unsuspending", "suspended",
    "resuming", "moving-out", "moving-in", "moving-back", "ending",
]  # fmt: skip
# How it ended. "failed": a node could not start it. "gone": its holder was gone.
Outcome = Literal["", "released", "failed", "lost", "gone", "timed-out", "withdrawn"]
STATES: tuple[State, ...] = get_args(State)
MOVING: frozenset[State] = frozenset({"moving-out", "moving-in", "moving-back"})


@dataclass(slots=True)
class Holding:
    """One application as the manager keeps it. Times are the pool's clock."""

    name: str
    owner: str  # "alice@node-1", or a certificate's name
    claimed_ns: int
    since_ns: int  # in this state
    asked_blocks: int
    request_id: str = ""
    user: str = ""
    uid: int | None = None  # on the holder's node
    holder_node: str = ""  # empty: the holder is not on a node
    until_revoked: bool = False
    wait_ns: int = 0
    kind: str = ""
    span: str = "node"
    node: str = ""
    mode: str = ""
    command: list[str] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    state: State = "waiting"
    reason: str = ""
    outcome: Outcome = ""
    # What its nodes were told last.
    revision: int = 0
    is_suspended: bool = False
    placed: tuple[Run, ...] = ()  # suspended: where it was
    nodes: tuple[str, ...] = ()  # all that were told of it, and have not reported it gone
    ordered_blocks: int = 0  # its size is being changed to so many; 0: it is not
    before: tuple[Run, ...] = ()  # it grows: what it had
    before_blocks: int = 0
    suspended_since_ns: int = 0
    suspended_for_ns: int = 0
    suspensions: int = 0
    grace_ns: int | None = None  # it ends: between SIGTERM and SIGKILL; None: the usual time

    @property
    def is_placed(self) -> bool:
        """Whether its nodes are to have it."""
        return bool(self.placed) and self.state != "ending"


def plain_of(one: Holding) -> dict[str, Any]:
    """The holding as plain JSON values."""
    return asdict(one)


def holding_of(plain: Mapping[str, Any]) -> Holding:
    """The holding in a record; keys that a later release wrote are ignored."""
    known = {name: value for name, value in plain.items() if name in Holding.__dataclass_fields__}
    for name in ("placed", "before"):
        known[name] = tuple(Run(*one) for one in known.get(name, ()))
    known["nodes"] = tuple(known.get("nodes", ()))
    return Holding(**known)
