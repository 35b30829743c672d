"""Orders to a node and reports from it, in the manager's own terms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.scheduling.blocks.card import Card


@dataclass(frozen=True, slots=True)
class PartShare:
    """What an application has on one device."""

    device_uuid: str
    memory_bytes: int
    cores_permille: int


@dataclass(frozen=True, slots=True)
class PartOrder:
    """What the pool wants of one application on a node."""

    application: str
    revision: int
    is_suspended: bool
    shares: tuple[PartShare, ...]
    user: str = ""
    uid: int | None = None
    mode: str = ""
    command: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    claimed_ns: int = 0  # tells it from an earlier application of the same name
    span: str = "node"


@dataclass(frozen=True, slots=True)
class Orders:
    """All that the pool wants on a node, or why the node may not join."""

    pool: str
    term: int
    number: int
    parts: tuple[PartOrder, ...] = ()
    refused: str = ""
    graces_ns: dict[str, int] = field(default_factory=dict)  # of those that end, if not the usual


@dataclass(frozen=True, slots=True)
class PartStatus:
    """What a node says of one application."""

    application: str
    revision: int
    state: str
    reason: str = ""
    device_bytes: int = 0
    host_bytes: int = 0
    took_ns: int = 0


@dataclass(frozen=True, slots=True)
class ReportedCard:
    """A card that a node brings, or why the pool does not get it."""

    card: Card
    index: int
    left_out: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """One message of a node."""

    node: str
    version: str = ""
    pool: str = ""
    term: int = 0
    cards: tuple[ReportedCard, ...] = ()
    parts: tuple[PartStatus, ...] = ()
    seen: int = 0
    alive: frozenset[str] = frozenset()
    precision: str = ""
    address: str = ""


class Link(Protocol):
    """The connection to a node. Its methods may be called from any thread."""

    def send(self, orders: Orders) -> None:
        """Sends orders; of those that were not sent yet, only the newest matter."""

    def close(self, reason: str) -> None:
        """Ends the connection."""
