"""Mutual TLS: validation of the agent's certificate files, and client names."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

# A certificate's name is the first of these that is set: common name, then alternative names.
_NAMES = ("x509_common_name", "peer_uri", "peer_dns", "x509_subject_alternative_name")
MOST_NAME = 256  # characters


@dataclass(frozen=True)
class Tls:
    """The listen address and the certificate files, in PEM format."""

    address: str  # host:port
    certificate: Path
    key: Path
    authority: Path  # CA that signs the certificates of clients

    def listen(self, server: grpc.aio.Server) -> int:
        """Makes `server` listen; returns the port. Raises `PenstockError` if it cannot listen."""
        self._check_address()
        certificate, key, authority = self.read()
        credentials = grpc.ssl_server_credentials(
            [(key, certificate)], root_certificates=authority, require_client_auth=True
        )
        try:
            return int(server.add_secure_port(self.address, credentials))
        except RuntimeError as error:
            raise PenstockError(
                f"cannot listen on {self.address}", str(error),
                "check the address, or choose another --listen",
            ) from error  # fmt: skip

    def read(self) -> tuple[bytes, bytes, bytes]:
        """The certificate, its key and the CA. Raises `PenstockError` if one is unusable."""
        files = [_read(file) for file in (self.certificate, self.key, self.authority)]
        self._check_files()
        certificate, key, authority = files
        return certificate, key, authority

    def _check_address(self) -> None:
        host, _, port = self.address.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise PenstockError(
                f"invalid address: {self.address!r}",
                "it must be HOST:PORT, with a port from 0 (any) to 65535",
                "use an address such as --listen 0.0.0.0:9471",
            )

    def _check_files(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # Without the password callback OpenSSL would prompt on the terminal.
            context.load_cert_chain(self.certificate, self.key, password=lambda: "")
        except (ssl.SSLError, ValueError) as error:
            raise PenstockError(
                f"{self.certificate} and {self.key} cannot be used", _words(error),
                "name a certificate and its own key without a password, both in PEM format",
            ) from error  # fmt: skip
        try:
            context.load_verify_locations(self.authority)
        except (ssl.SSLError, ValueError) as error:
            raise PenstockError(
                f"{self.authority} cannot be used", _words(error),
                "name the certificate of the CA that signs client certificates, in PEM format",
            ) from error  # fmt: skip


def name_of(identity: Mapping[str, Iterable[bytes]]) -> str | None:
    """The name in a client certificate that gRPC has verified, None if it has no name."""
    for kind in _NAMES:
        for raw in identity.get(kind, ()):
            name = raw.decode(errors="replace").strip()
            if name:
                return "".join(c if c.isprintable() else "\ufffd" for c in name)[:MOST_NAME]
    return None


def _read(file: Path) -> bytes:
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise PenstockError(
            f"cannot read {file}", error.strerror or str(error),
            "name readable files: a certificate, its key, and the certificate of the clients' CA",
        ) from error  # fmt: skip
    if not raw.strip():
        raise PenstockError(
            f"{file} is empty", "TLS needs the certificate or key that it should contain",
            "write the certificate or key into it, in PEM format",
        )  # fmt: skip
    return raw


def _words(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason).replace("_", " ").lower() if reason else str(error)
