"""The link between a program and its cards' workers: frames of bytes, in order, and replies.

`CardLink` is the program's side and `serve` the worker's. `spawned` starts a worker as a child.
"""

from penstock.card.link.agreement import Agreement
from penstock.card.link.card_link import CardLink, LinkSettings, Part, Progress, Reply
from penstock.card.link.endpoint import Endpoint, InheritedEndpoint, TcpEndpoint, UnixEndpoint
from penstock.card.link.errors import CardError, OperationError, ReplyTimeoutError, Worker
from penstock.card.link.serve import (
    EXIT_DONE,
    EXIT_FRONT_END_GONE,
    EXIT_PROTOCOL,
    Connection,
    Description,
    Listener,
    listen_tcp,
    listen_unix,
    serve,
)
from penstock.card.link.tls import TlsIdentity

__all__ = [
    "EXIT_DONE",
    "EXIT_FRONT_END_GONE",
    "EXIT_PROTOCOL",
    "Agreement",
    "CardError",
    "CardLink",
    "Connection",
    "Description",
    "Endpoint",
    "InheritedEndpoint",
    "LinkSettings",
    "Listener",
    "OperationError",
    "Part",
    "Progress",
    "Reply",
    "ReplyTimeoutError",
    "TcpEndpoint",
    "TlsIdentity",
    "UnixEndpoint",
    "Worker",
    "listen_tcp",
    "listen_unix",
    "serve",
]
