"""Addresses of the managers of a compute pool, and channels to them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio

from penstock.model import PenstockError
from penstock.node.rpc.tls import Tls

# A list of orders for a node is far smaller; the state of a pool of 10,000 nodes is not.
MOST_ANSWER_BYTES = 64 << 20
OPTIONS = [
    ("grpc.max_receive_message_length", MOST_ANSWER_BYTES),
    ("grpc.enable_retries", 0),
    # A manager that was started again must be found at once.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 3000),
]


@dataclass(frozen=True)
class PoolEndpoint:
    """Where the pool's managers are: `HOST:PORT` with mutual TLS, or the path of a unix socket."""

    addresses: tuple[str, ...]
    certificate: Path | None = None  # PEM files, for HOST:PORT
    key: Path | None = None
    authority: Path | None = None

    def check(self) -> None:
        """Raises `PenstockError` if an address is invalid or a certificate file is unusable."""
        for address in self.addresses:
            if not _is_path(address):
                host, _, port = address.rpartition(":")
                if not host or not port.isdecimal() or not 0 < int(port) < 65536:
                    raise PenstockError(
                        f"invalid address of a pool: {address!r}",
                        "it is neither HOST:PORT nor the path of the manager's socket",
                        "write --pool manager.example:9472, or --pool /run/penstock-pool/pool.sock",
                    )
        if any(not _is_path(address) for address in self.addresses):
            self._files()

    def channel(self, address: str, name: str = "") -> grpc.aio.Channel:
        """A channel to one manager; the files are read anew, since certificates are renewed.

        `name`: of the certificate there; empty: that of its host.

        Raises:
            PenstockError: a file cannot be read, or the socket is another user's.
        """
        if _is_path(address):
            _check_trusted(Path(address))
            options = [*OPTIONS, ("grpc.default_authority", "localhost")]
            options.append(("grpc.enable_http_proxy", 0))
            return grpc.aio.insecure_channel(f"unix:{Path(address).absolute()}", options)
        certificate, key, authority = self._files()
        credentials = grpc.ssl_channel_credentials(authority, key, certificate)
        named = [("grpc.ssl_target_name_override", name)] if name else []
        return grpc.aio.secure_channel(address, credentials, [*OPTIONS, *named])

    def _files(self) -> tuple[bytes, bytes, bytes]:
        if self.certificate is None or self.key is None or self.authority is None:
            raise PenstockError(
                "the pool needs mutual TLS", "a certificate, its key or the CA is missing",
                "add --pool-cert, --pool-key and --pool-ca; the certificate's name is "
                "penstock:node:NAME",
            )  # fmt: skip
        files = Tls(self.addresses[0], self.certificate, self.key, self.authority)
        return files.read()


def _is_path(address: str) -> bool:
    return "/" in address


def _check_trusted(file: Path) -> None:
    """Raises `PenstockError` if another user's program may listen there."""
    try:
        owner = file.lstat().st_uid
    except OSError as error:
        raise PenstockError(
            f"no manager of the pool answers at {file}", error.strerror or str(error),
            "start it with penstock pool serve", reason="unavailable",
        ) from error  # fmt: skip
    if owner not in {0, os.geteuid()}:
        raise PenstockError(
            f"the socket {file} is not trusted", f"it belongs to uid {owner}",
            "name the socket of a manager that root or the agent's user has started",
            reason="unavailable",
        )  # fmt: skip
