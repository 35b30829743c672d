"""What a compute pool wants on this node, and what is there, as plain values without gRPC."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.model import PenstockError, check_tenant_name
from penstock.model.quantity import FULL_DEVICE_PERMILLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.model.terms import Mode

MOST_PARTS = 4096  # in one list
MOST_SHARES = 64  # of one application
MOST_REVISION = (1 << 64) - 1


@dataclass(frozen=True)
class PoolShare:
    """A share of one device that an application is to have."""

    uuid: str
    memory_bytes: int
    cores_permille: int


@dataclass(frozen=True)
class Part:
    """What an application is to have on this node."""

    application: str
    revision: int  # grows whenever something of the part changes
    suspended: bool  # with its device memory released
    shares: tuple[PoolShare, ...]  # in the order in which the tenant numbers its devices
    user: str
    uid: int | None  # the holder's uid on this node; None if the holder is elsewhere
    mode: Mode
    command: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    claimed_ns: int = 0  # when, by the pool's clock; 0: its manager does not tell
    is_spread: bool = False  # it may lie across nodes: its processes here are cards
    process_uid: int | None = None  # the user of its processes here; None: any

    def check(self) -> None:
        """Raises `PenstockError` if the order cannot be meant."""
        check_tenant_name(self.application)
        uuids = [share.uuid for share in self.shares]
        if not 1 <= len(uuids) <= MOST_SHARES or len(set(uuids)) != len(uuids):
            raise PenstockError(
                f"the order for {self.application} is invalid",
                f"it names {len(uuids)} devices, {len(set(uuids))} of them different",
                f"an application has shares of 1 to {MOST_SHARES} different devices of a node",
            )
        for share in self.shares:
            if not 1 <= share.cores_permille <= FULL_DEVICE_PERMILLE or share.memory_bytes <= 0:
                raise PenstockError(
                    f"the order for {self.application} is invalid",
                    f"its share of {share.uuid} is {share.cores_permille} permille and "
                    f"{share.memory_bytes} bytes",
                    "a share has memory, and 1 to 1000 permille of a device",
                )


@dataclass(frozen=True)
class PoolOrders:
    """All that the pool wants on this node: its tenants that are not listed are to be ended."""

    pool: str
    term: int  # the fencing token: the leader's term
    number: int
    parts: tuple[Part, ...]
    graces_ns: Mapping[str, int] = field(default_factory=dict)  # of those that end


@dataclass(frozen=True)
class PartState:
    """What is there of an application, compared with what is wanted."""

    application: str
    revision: int  # of the order that was carried out
    state: str  # "pending", "running", "suspending", "suspended", "resuming", "ending", "failed"
    reason: str = ""
    device_bytes: int = field(default=0, compare=False)
    host_bytes: int = field(default=0, compare=False)
    processes: int = field(default=0, compare=False)
    took_ns: int = field(default=0, compare=False)


@dataclass(frozen=True)
class PoolCardState:
    """A card that this node has, and why the pool does not get it, if so."""

    uuid: str
    index: int
    model: str
    tflops: float
    memory_bytes: int
    frees_memory: bool
    left_out: str = ""
    kind: str = "gpu"


@dataclass(frozen=True)
class NodeState:
    """A node's report to its pool."""

    pool: str
    term: int
    seen: int  # number of the newest orders that `parts` answers
    cards: tuple[PoolCardState, ...]
    parts: tuple[PartState, ...]
    alive: tuple[str, ...]
    precision: str = ""  # of the cards' ratings
