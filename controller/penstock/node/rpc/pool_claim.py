"""A claim of blocks of a compute pool, and its message."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from penstock.node.rpc.message_bounds import KEPT_COMMAND_BYTES, shortened
from penstock_api.v1 import agent_pb2, pool_pb2

if TYPE_CHECKING:
    from penstock.model.terms import Mode
    from penstock.node.tenants.grant import Lifetime

Span = Literal["card", "node", "pool"]
SPANS: tuple[Span, ...] = get_args(Span)
ANY_NODE = "*"  # of a claim at an agent; empty there means the agent's own node
MOST_BLOCKS = 2**32 - 1  # what the message can hold
LEAST_PRIORITY, MOST_PRIORITY = -(2**63), 2**63 - 1
_SPANS = {"card": pool_pb2.SPAN_CARD, "node": pool_pb2.SPAN_NODE, "pool": pool_pb2.SPAN_POOL}
_MODES = {"strict": agent_pb2.MODE_STRICT, "elastic": agent_pb2.MODE_ELASTIC}
_LIFETIMES = {
    "processes": agent_pb2.LIFETIME_PROCESSES,
    "until-revoked": agent_pb2.LIFETIME_UNTIL_REVOKED,
}


@dataclass(frozen=True)
class PoolClaim:
    """What an application asks for. `request_id` makes it the same claim when it is sent again."""

    blocks: int
    priority: int = 0
    name: str = ""  # empty: the manager chooses one
    memory_bytes: int | None = None  # None: in proportion to the blocks of each card
    kind: str = ""  # empty: cards of any kind
    span: Span = "node"
    node: str = ""  # empty: any node
    wait_ns: int = 0  # 0: it does not wait
    lifetime: Lifetime = "processes"
    mode: Mode = "strict"
    command: tuple[str, ...] = ()  # for people
    request_id: str = field(default_factory=lambda: secrets.token_hex(16))

    def message(self) -> pool_pb2.AcquireRequest:
        """The message that makes this claim."""
        request = pool_pb2.AcquireRequest(
            name=self.name,
            request_id=self.request_id,
            blocks=self.blocks,
            priority=self.priority,
            memory_bytes=self.memory_bytes,
            kind=self.kind,
            span=_SPANS[self.span],
            node=self.node,
            lifetime=_LIFETIMES[self.lifetime],
            mode=_MODES[self.mode],
            command=shortened(self.command, KEPT_COMMAND_BYTES),
        )
        if self.wait_ns:
            request.wait.FromNanoseconds(self.wait_ns)
        return request


def span_of(application: pool_pb2.Application) -> Span:
    """What the blocks of an application may lie across."""
    return next((word for word in SPANS if _SPANS[word] == application.span), "node")
