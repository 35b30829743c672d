"""Mutual TLS 1.3 between a program and its cards on other nodes."""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.card.link.stream import TlsStream
from penstock.model import PenstockError

if TYPE_CHECKING:
    from pathlib import Path

_FINGERPRINT = "sha256:"
_KEEPALIVE_IDLE_S, _KEEPALIVE_PERIOD_S, _KEEPALIVE_COUNT = 5, 5, 3
_UNACKNOWLEDGED_S = 20  # bytes that the other side's kernel does not confirm


@dataclass(frozen=True)
class TlsIdentity:
    """A certificate, its key and the authority of the other side's certificate, all in PEM."""

    certificate: bytes
    key: bytes = field(repr=False)
    authority: bytes

    @classmethod
    def from_files(cls, certificate: Path, key: Path, authority: Path) -> TlsIdentity:
        """Reads PEM files. Raises `PenstockError` if one cannot be read."""
        try:
            return cls(certificate.read_bytes(), key.read_bytes(), authority.read_bytes())
        except OSError as error:
            raise PenstockError(
                f"cannot read {error.filename}", error.strerror or str(error),
                "name readable files: a certificate, its key, and the other side's authority",
            ) from error  # fmt: skip

    def fingerprint(self) -> str:
        """The name by which the other side may know this certificate, whoever has issued it."""
        der = ssl.PEM_cert_to_DER_cert(self.certificate.decode("ascii"))
        return _FINGERPRINT + hashlib.sha256(der).hexdigest()

    def context(self, *, is_server: bool) -> ssl.SSLContext:
        """Accepts TLS 1.3 alone, and peers of the authority alone.

        Raises:
            PenstockError: these are no certificates, or the key is another one's.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # `check_peer` compares the name that was agreed on
        context.verify_mode = ssl.CERT_REQUIRED
        if is_server:
            context.num_tickets = 0  # nobody resumes a session
        try:
            context.load_verify_locations(cadata=self.authority.decode("ascii"))
            _load_pair(context, self.certificate, self.key)
        except (ssl.SSLError, ValueError) as error:
            raise PenstockError(
                "the certificates of a card's connection cannot be used", str(error),
                "give a certificate, its own key and the other side's authority, as PEM",
            ) from error  # fmt: skip
        return context


def secured(connection: socket.socket, context: ssl.SSLContext, peer: str) -> TlsStream:
    """The stream over TLS, after its handshake and after the peer's name was checked.

    `connection` has a timeout; it is closed if this fails.

    Raises:
        OSError: the handshake failed, or the peer has another name.
    """
    try:
        _set_options(connection)
        is_server = context.protocol == ssl.PROTOCOL_TLS_SERVER
        tls = context.wrap_socket(connection, server_side=is_server)
    except BaseException:
        connection.close()
        raise
    try:
        check_peer(tls, peer)
    except BaseException:
        tls.close()
        raise
    return TlsStream(tls)


def check_peer(tls: ssl.SSLSocket, peer: str) -> None:
    """Raises ConnectionError unless the peer's certificate has this name or this fingerprint."""
    if peer.startswith(_FINGERPRINT):
        der = tls.getpeercert(binary_form=True) or b""
        names = [_FINGERPRINT + hashlib.sha256(der).hexdigest()]
    else:
        said = tls.getpeercert() or {}
        alternatives = said.get("subjectAltName", ())
        names = [str(one[1]) for one in alternatives if one[0] in {"DNS", "URI"}]
    if not any(hmac.compare_digest(one.encode(), peer.encode()) for one in names):
        raise ConnectionError(
            f"the other side's certificate is not that of {peer!r} but of {', '.join(names)!r}"
        )


def _set_options(connection: socket.socket) -> None:
    tcp = socket.IPPROTO_TCP
    connection.setsockopt(tcp, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(tcp, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_S)
    connection.setsockopt(tcp, socket.TCP_KEEPINTVL, _KEEPALIVE_PERIOD_S)
    connection.setsockopt(tcp, socket.TCP_KEEPCNT, _KEEPALIVE_COUNT)
    connection.setsockopt(tcp, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_S * 1000)


def _load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Python reads pairs from files alone; this one is in memory, which nobody else can open."""
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(certificate + b"\n" + key)
        file.flush()
        # Without the password callback OpenSSL would prompt on the terminal.
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=lambda: "")
