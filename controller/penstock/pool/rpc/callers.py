"""Callers over gRPC: by the kernel on the unix socket, by certificate over TLS, or passed on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from penstock.model import PenstockError
from penstock.node.agent import Principal
from penstock.node.rpc.tls import name_of
from penstock.pool.caller import Caller
from penstock_api.v1 import pool_pb2 as pb

if TYPE_CHECKING:
    from penstock.node.rpc.peer_socket import PeerSocket
    from penstock.pool.nodes import Nodes

Context = Any  # grpc.aio.ServicerContext's type parameters do not matter here
METADATA = "penstock-caller-bin"
NODE_PREFIX = "penstock:node:"


@dataclass(frozen=True)
class Peer:
    """Who is at the other end of a connection. `node`: its name, if it is one by certificate."""

    principal: Principal
    address: tuple[str, int | None]
    node: str = ""
    is_local: bool = False


class Callers:
    """Identifies callers."""

    def __init__(self, sockets: PeerSocket, host: str) -> None:
        """`host`: the name of this machine, for its users."""
        self._sockets = sockets
        self._host = host

    def principal(self, context: Context) -> Principal | None:
        """The principal whose calls are counted together; a user behind a node is one, too."""
        peer = self.peer(context)
        if peer is None:
            return None
        try:
            relayed = _relayed(context)
        except PenstockError:
            return None
        if relayed is None or not (peer.node or (peer.is_local and peer.principal.is_admin)):
            return peer.principal
        node = peer.node or f"process {peer.address[1]}"
        return Principal(f"{relayed.user}@{node}", None, None, is_admin=False)

    def peer(self, context: Context) -> Peer | None:
        """Who is at the other end; None: nobody that can be identified."""
        address = context.peer()
        if not address.startswith(("ipv4:", "ipv6:")):
            local = self._sockets.caller(address)
            if local is None:
                return None
            return Peer(local, (address, local.pid), is_local=True)
        name = name_of(context.auth_context())
        if name is None:
            return None
        node = name[len(NODE_PREFIX) :] if name.startswith(NODE_PREFIX) else ""
        principal = Principal(name, None, None, is_admin=not name.startswith(NODE_PREFIX))
        return Peer(principal, (address, None), node)

    def caller(self, context: Context, nodes: Nodes) -> Caller:
        """Who calls. Raises `PenstockError` if that cannot be said, or may not call."""
        peer = self.peer(context)
        if peer is None:
            raise PenstockError(
                "the caller cannot be identified", "over TLS a certificate needs a name",
                "use a certificate with a common name", reason="not-allowed",
            )  # fmt: skip
        relayed = _relayed(context)
        if relayed is not None and (peer.node or (peer.is_local and peer.principal.is_admin)):
            node = peer.node
            if not node:
                joined = nodes.at(peer.address)
                if joined is None:
                    raise PenstockError(
                        "the call is passed on by a process that is no node of the pool",
                        "its agent has not joined, or has lost its connection",
                        "try again once the agent has joined", reason="unavailable",
                    )  # fmt: skip
                node = joined.name
            if not 0 < len(relayed.user) <= 256:
                raise PenstockError(
                    "the user's name is invalid", "it has no or too many characters"
                )
            return Caller(f"{relayed.user}@{node}", False, relayed.user, relayed.uid, node)
        if relayed is not None:
            raise PenstockError(
                f"{peer.principal.name} may not call for others", "only nodes pass calls on",
                f"leave out the metadata {METADATA}", reason="not-allowed",
            )  # fmt: skip
        if not peer.principal.is_admin and not peer.is_local:
            raise PenstockError(
                f"{peer.principal.name} is not allowed to call", "a node may only join, and pass "
                "on calls of its users", f"send the metadata {METADATA}", reason="not-allowed",
            )  # fmt: skip
        if peer.is_local:
            owner = f"{peer.principal.name}@{self._host}"
            return Caller(owner, peer.principal.is_admin, peer.principal.name)
        return Caller(peer.principal.name, peer.principal.is_admin, peer.principal.name)

    def node(self, context: Context, claimed: str) -> Peer:
        """The node that joins as `claimed`. Raises `PenstockError` if it may not."""
        peer = self.peer(context)
        if peer is not None and (
            peer.node == claimed or (peer.is_local and peer.principal.is_admin)
        ):
            return peer
        who = peer.principal.name if peer is not None else "a caller without a name"
        raise PenstockError(
            f"{who} may not join as node {claimed}",
            f"the certificate of that node has the name {NODE_PREFIX}{claimed}",
            "use that certificate, or the name in yours (penstock agent --node)",
            reason="not-allowed",
        )


def _relayed(context: Context) -> pb.RelayedCaller | None:
    for key, value in context.invocation_metadata() or ():
        if key == METADATA:
            try:
                return pb.RelayedCaller.FromString(value)
            except DecodeError as error:
                raise PenstockError(
                    f"the metadata {METADATA} is invalid", str(error), "send a RelayedCaller"
                ) from error
    return None
