"""Conversion between the messages of a compute pool and the agent's own types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.model.terms import DEFAULT_MODE
from penstock.node.admission.checks import check_grace
from penstock.node.agent.pool_orders import MOST_PARTS, Part, PoolOrders, PoolShare
from penstock.node.rpc.convert import MODES
from penstock.node.rpc.message_bounds import KEPT_COMMAND_BYTES, check_labels, shortened
from penstock.node.rpc.status import cut
from penstock_api.v1 import pool_pb2 as pb

if TYPE_CHECKING:
    from penstock.node.agent.pool_orders import NodeState

MOST_USER = 256  # characters


def report_to(state: NodeState, node: str, version: str, address: str = "") -> pb.NodeReport:
    """The node's report as a message. `address`: of its agent, for other nodes."""
    message = pb.NodeReport(
        node=node,
        version=version,
        address=address,
        pool=state.pool,
        term=state.term,
        seen=state.seen,
        alive=state.alive,
        precision=state.precision,
        cards=[
            pb.PoolCard(
                uuid=card.uuid,
                index=card.index,
                kind=card.kind,
                model=card.model,
                tflops=card.tflops,
                memory_bytes=card.memory_bytes,
                frees_memory=card.frees_memory,
                left_out=cut(card.left_out),
            )
            for card in state.cards
        ],
    )
    for part in state.parts:
        report = message.parts.add(
            application=part.application,
            revision=part.revision,
            state=part.state,
            reason=cut(part.reason),
            device_bytes=part.device_bytes,
            host_bytes=part.host_bytes,
            processes=part.processes,
        )
        report.took.FromNanoseconds(part.took_ns)
    return message


def orders_of(message: pb.NodeOrders, card_uid: int | None = None) -> PoolOrders:
    """The orders in a message. `card_uid`: the user of cards whose programs are on other nodes.

    Raises:
        PenstockError: they cannot be meant.
    """
    if len(message.parts) > MOST_PARTS:
        raise PenstockError(
            f"a list of {len(message.parts)} applications for one node was refused",
            f"a node takes at most {MOST_PARTS}",
            "see what answers at the address of --pool",
        )
    parts = tuple(_part_of(one, card_uid) for one in message.parts)
    if len({part.application for part in parts}) != len(parts):
        raise PenstockError(
            "a list of orders was refused", "it names an application twice",
            "see the log of the pool's manager",
        )  # fmt: skip
    return PoolOrders(message.pool, message.term, message.number, parts, _graces_of(message))


def _graces_of(message: pb.NodeOrders) -> dict[str, int]:
    """The time to end in, by application. Raises `PenstockError` if one is not possible."""
    graces = {
        one.application: one.grace.ToNanoseconds()
        for one in message.ends[:MOST_PARTS]
        if one.HasField("grace")
    }
    for grace_ns in graces.values():
        check_grace(grace_ns)
    return graces


def _part_of(message: pb.PartOrder, card_uid: int | None) -> Part:
    check_labels(message.labels)
    is_spread = message.span == pb.SPAN_POOL
    uid = message.uid if message.HasField("uid") else None
    return Part(
        application=message.application,
        revision=message.revision,
        suspended=message.suspended,
        shares=tuple(
            PoolShare(one.device_uuid, one.memory_bytes, one.cores_permille)
            for one in message.shares
        ),
        user=message.user[:MOST_USER],
        uid=uid,
        mode=MODES.get(message.mode, DEFAULT_MODE),
        command=tuple(shortened(message.command, KEPT_COMMAND_BYTES)),
        labels=dict(message.labels),
        claimed_ns=message.claimed.ToNanoseconds() if message.HasField("claimed") else 0,
        is_spread=is_spread,
        process_uid=card_uid if uid is None and is_spread else uid,
    )
