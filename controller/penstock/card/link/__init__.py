"""The link between a program and its cards' workers: frames of bytes, in order, and replies.

`CardLink` is the program's side and `serve` the worker's. `spawned` starts a worker as a child.
"""

from penstock.card.link.agreement import Agreement
from penstock.card.link.card_link import CardLink, Progress
from penstock.card.link.connection import Connection
from penstock.card.link.description import Description
from penstock.card.link.endpoint import Endpoint, InheritedEndpoint, TcpEndpoint, UnixEndpoint
from penstock.card.link.errors import CardError, OperationError, ReplyTimeoutError, Worker
from penstock.card.link.frame import FIRST_KIND, Part
from penstock.card.link.listener import Listener, listen_tcp, listen_unix
from penstock.card.link.reply import Reply
from penstock.card.link.serve import (
    EXIT_DONE,
    EXIT_FRONT_END_GONE,
    EXIT_PROTOCOL,
    serve,
)
from penstock.card.link.settings import MOST_BODY_BYTES, LinkSettings
from penstock.card.link.shared_memory import SLOT_BYTES
from penstock.card.link.tls import TlsIdentity

__all__ = [
    "EXIT_DONE",
    "EXIT_FRONT_END_GONE",
    "EXIT_PROTOCOL",
    "FIRST_KIND",
    "MOST_BODY_BYTES",
    "SLOT_BYTES",
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
