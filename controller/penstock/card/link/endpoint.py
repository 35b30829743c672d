"""Endpoints: where a card's worker is reached."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.card.link.tls import TlsIdentity


@dataclass(frozen=True)
class InheritedEndpoint:
    """One end of a socket pair, whose other end a child process has inherited."""

    connection: socket.socket


@dataclass(frozen=True)
class UnixEndpoint:
    """A unix socket on this node. `uid`: the user that the worker must have; None: this one."""

    path: Path
    uid: int | None = None


@dataclass(frozen=True)
class TcpEndpoint:
    """A worker on another node, by mutual TLS 1.3.

    `peer`: a name in the worker's certificate (URI or DNS), or "sha256:" and its fingerprint in
    hexadecimal digits.
    """

    host: str
    port: int
    identity: TlsIdentity
    peer: str


Endpoint = InheritedEndpoint | UnixEndpoint | TcpEndpoint
