"""Conversion between protobuf messages of the pool and the manager's own types."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.node.admission.checks import check_grace
from penstock.node.rpc.message_bounds import (
    KEPT_COMMAND_BYTES,
    MOST_ID_BYTES,
    check_names,
    check_request,
    shortened,
)
from penstock.pool.claims import Asked
from penstock.pool.orders import PartStatus, Report, ReportedCard
from penstock.scheduling.blocks.card import Card
from penstock.scheduling.blocks.claim import Claim
from penstock_api.v1 import agent_pb2
from penstock_api.v1 import pool_pb2 as pb

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.timestamp_pb2 import Timestamp

    from penstock.pool.event import Event
    from penstock.pool.orders import Orders
    from penstock.scheduling.blocks.claim import Span

SPANS: dict[int, Span] = {
    pb.SPAN_UNSPECIFIED: "node", pb.SPAN_NODE: "node", pb.SPAN_CARD: "card", pb.SPAN_POOL: "pool",
}  # fmt: skip
SPAN_NUMBERS = {"node": pb.SPAN_NODE, "card": pb.SPAN_CARD, "pool": pb.SPAN_POOL}
MODES = {agent_pb2.MODE_STRICT: "strict", agent_pb2.MODE_ELASTIC: "elastic"}
MODE_NUMBERS = {word: number for number, word in MODES.items()}
MOST_PRIORITY = 10**9
MOST_BLOCKS = 10**9
MOST_BYTES = 1 << 60
MOST_WAIT_NS = 366 * 24 * 3600 * 10**9
MOST_WORD = 256  # characters of a name or kind in a report
MOST_CARDS, MOST_PARTS = 1024, 65536
MOST_TFLOPS = 1e6


def asked_of(message: pb.AcquireRequest) -> Asked:
    """The claim in a message. Raises `PenstockError` if a field is invalid."""
    check_request(
        agent_pb2.GrantRequest(
            name=message.name, request_id=message.request_id, command=message.command,
            labels=message.labels, devices=[message.kind, message.node],
        )
    )  # fmt: skip
    _within("blocks", message.blocks, 1, MOST_BLOCKS)
    _within("priority", message.priority, -MOST_PRIORITY, MOST_PRIORITY)
    memory = message.memory_bytes if message.HasField("memory_bytes") else None
    _within("memory_bytes", memory or 0, 0, MOST_BYTES)
    wait_ns = message.wait.ToNanoseconds() if message.HasField("wait") else 0
    _within("wait", wait_ns, 0, MOST_WAIT_NS)
    if message.span not in SPANS:
        raise _invalid("span", message.span, f"one of {sorted(SPANS)}")
    # What is bound to one node is no virtual card, which the pool may move elsewhere.
    span = "node" if message.node and SPANS[message.span] == "pool" else SPANS[message.span]
    claim = Claim(
        message.blocks, message.priority, memory, message.kind, span, message.node
    )  # fmt: skip
    return Asked(
        claim,
        message.name,
        message.request_id,
        wait_ns,
        message.lifetime != agent_pb2.LIFETIME_PROCESSES,
        MODES.get(message.mode, ""),
        tuple(shortened(message.command, KEPT_COMMAND_BYTES)),
        dict(message.labels),
    )


def grace_of(message: pb.ReleaseRequest) -> int | None:
    """The grace of a release, None for the usual one. Raises `PenstockError` if it is invalid."""
    if not message.HasField("grace"):
        return None
    grace_ns = message.grace.ToNanoseconds()
    check_grace(grace_ns)
    return grace_ns


def check_application_names(names: list[str]) -> list[str]:
    """`names`, if there are not too many and none is too long. Raises `PenstockError`."""
    check_names(names)
    return names


def report_of(message: pb.NodeReport) -> Report:
    """The report in a message. Raises `PenstockError` if a field is invalid."""
    if not 0 < len(message.node) <= MOST_WORD:
        raise _invalid("node", message.node[:32], f"a name of 1 to {MOST_WORD} characters")
    _within("the number of cards", len(message.cards), 0, MOST_CARDS)
    _within("the number of applications", len(message.parts), 0, MOST_PARTS)
    _within("the number of holders", len(message.alive), 0, MOST_PARTS)
    cards = tuple(_card_of(card, at) for at, card in enumerate(message.cards))
    if len({one.card.uuid for one in cards}) < len(cards):
        raise _invalid("cards", "the same UUID twice", "one entry for each card")
    return Report(
        message.node,
        message.version[:MOST_WORD],
        message.pool[:MOST_ID_BYTES],
        message.term,
        cards,
        tuple(_part_of(part) for part in message.parts),
        message.seen,
        frozenset(message.alive),
        message.precision[:MOST_WORD],
        message.address[:MOST_WORD],
    )


def orders_to(orders: Orders) -> pb.NodeOrders:
    """The message with a node's orders."""
    message = pb.NodeOrders(
        pool=orders.pool, term=orders.term, number=orders.number,
        refused=bool(orders.refused), reason=orders.refused,
    )  # fmt: skip
    for part in orders.parts:
        added = message.parts.add(
            application=part.application, revision=part.revision, suspended=part.is_suspended,
            user=part.user, command=part.command, labels=part.labels,
            mode=MODE_NUMBERS.get(part.mode, agent_pb2.MODE_UNSPECIFIED),
            span=SPAN_NUMBERS[part.span],
        )  # fmt: skip
        if part.uid is not None:
            added.uid = part.uid
        set_time(added.claimed, part.claimed_ns)
        for share in part.shares:
            added.shares.add(
                device_uuid=share.device_uuid, memory_bytes=share.memory_bytes,
                cores_permille=share.cores_permille,
            )  # fmt: skip
    for name, grace_ns in orders.graces_ns.items():
        set_duration(message.ends.add(application=name).grace, grace_ns)
    return message


def event_to(event: Event) -> pb.PoolEvent:
    """The message with an event."""
    message = pb.PoolEvent(
        event=event.event, application=event.application, node=event.node, reason=event.reason,
        details=json.dumps(event.details) if event.details else "", number=event.number,
    )  # fmt: skip
    set_time(message.time, event.time_ns)
    return message


def set_time(message: Timestamp, time_ns: int) -> None:
    """Sets a time."""
    message.FromNanoseconds(time_ns)


def set_duration(message: Duration, duration_ns: int) -> None:
    """Sets a duration."""
    message.FromNanoseconds(duration_ns)


def _card_of(message: pb.PoolCard, at: int) -> ReportedCard:
    if not 0 < len(message.uuid) <= MOST_WORD or len(message.kind) > MOST_WORD:
        raise _invalid("a card's uuid or kind", message.uuid[:32], f"1 to {MOST_WORD} characters")
    if not math.isfinite(message.tflops) or not 0 <= message.tflops <= MOST_TFLOPS:
        raise _invalid(f"tflops of card {message.uuid}", message.tflops, f"0 to {MOST_TFLOPS:g}")
    _within(f"memory of card {message.uuid}", message.memory_bytes, 0, MOST_BYTES)
    card = Card(
        message.uuid, message.kind or "gpu", message.tflops, message.memory_bytes,
        message.model[:MOST_WORD], message.frees_memory,
    )  # fmt: skip
    return ReportedCard(card, message.index or at, message.left_out[:MOST_WORD])


def _part_of(message: pb.PartReport) -> PartStatus:
    return PartStatus(
        message.application,
        message.revision,
        message.state,
        message.reason[:1024],
        message.device_bytes,
        message.host_bytes,
        message.took.ToNanoseconds() if message.HasField("took") else 0,
    )


def _within(what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise _invalid(what, value, f"{least} to {most}")


def _invalid(what: str, value: object, allowed: str) -> PenstockError:
    return PenstockError(f"invalid value for {what}: {value}", f"allowed: {allowed}", "correct it")
