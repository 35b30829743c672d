"""Where the service Pool is reached: the socket of an agent or a manager, or HOST:PORT with TLS."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import grpc

from penstock.model import PenstockError
from penstock.node.rpc.client import MOST_ANSWER_BYTES, entrance_of, listens, local_channel
from penstock.node.rpc.status import error_of, has_error

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Server = Literal["agent", "manager"]
_NOT_CONNECTED = "failed to connect to all addresses"
# A connection whose other end vanished without a word is noticed after this. Servers regard pings
# that come more often than every five minutes as an attack.
_PING_MS = 330_000
_REMOTE_OPTIONS = [
    ("grpc.max_receive_message_length", MOST_ANSWER_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", _PING_MS),
    ("grpc.keepalive_timeout_ms", 20_000),
]


@dataclass(frozen=True)
class PoolTarget:
    """One server of the service Pool. `address` is HOST:PORT or the path of a socket."""

    address: str
    server: Server
    open: Callable[[], grpc.Channel]
    socket: Path | None = None

    def was_crowded_out(self, error: grpc.RpcError) -> bool:
        """Whether the full queue of a running server's socket refused us; nothing was sent."""
        return self.socket is not None and never_connected(error) and listens(self.socket)


def local_target(file: Path, server: Server) -> PoolTarget:
    """The server behind a unix socket."""
    entrance = entrance_of(file) if server == "agent" else file
    return PoolTarget(str(file), server, lambda: local_channel(entrance), entrance)


def remote_targets(
    addresses: str, certificate: Path, key: Path, authority: Path
) -> list[PoolTarget]:
    """Managers at `HOST:PORT[,HOST:PORT…]`, with files in PEM format.

    Raises:
        PenstockError: a file cannot be used, or an address has another form.
    """
    names = [one.strip() for one in addresses.split(",")]
    for name in names:
        host, _, port = name.rpartition(":")
        if not host or not (port.isascii() and port.isdigit() and 0 < int(port) <= 65535):
            raise PenstockError(
                f"invalid address of a pool's manager: {name!r}",
                "it is neither HOST:PORT nor the path of a socket",
                "write it like --pool manager.example:9472 or --pool /var/lib/penstock/pool.sock",
            )
    chain, secret, ca = (_pem(file) for file in (certificate, key, authority))
    _check(certificate, key, authority)
    credentials = grpc.ssl_channel_credentials(ca, secret, chain)

    def opener(address: str) -> Callable[[], grpc.Channel]:
        return lambda: grpc.secure_channel(address, credentials, _REMOTE_OPTIONS)

    return [PoolTarget(name, "manager", opener(name)) for name in names]


def never_connected(error: grpc.RpcError) -> bool:
    """Whether a call failed before anything was sent."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and str(error.details()).startswith(
        _NOT_CONNECTED
    )


def was_interrupted(error: grpc.RpcError) -> bool:
    """Whether a call failed because its server went away or does not answer now."""
    code, details = error.code(), str(error.details())
    return code in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED} or (
        code in {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}
        and ("RST_STREAM" in details or "Stream removed" in details)
    )


def pool_error_of(error: grpc.RpcError, target: PoolTarget) -> PenstockError:
    """The error to show to the user for a failed call of the service Pool."""
    if has_error(error):
        return error_of(error, target.address)
    code, who = error.code(), f"the {target.server} at {target.address}"
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return PenstockError(
            f"{who} serves no pool",
            "it is of no pool" if target.server == "agent" else str(error.details()),
            "start the agent with penstock agent --pool, or name the pool's manager with --pool",
            reason="not-now",
        )
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return PenstockError(
            f"{who} did not respond in time", "it is busy or stopped, or it hangs",
            f"try again; see the {target.server}'s log", reason="unavailable",
        )  # fmt: skip
    if code is grpc.StatusCode.UNAVAILABLE:
        return PenstockError(
            f"no {target.server} of a pool answers at {target.address}", str(error.details()),
            "check the address and the certificates" if target.socket is None
            else f"start the {target.server}, or name the pool's manager with --pool",
            reason="unavailable",
        )  # fmt: skip
    return PenstockError(
        f"{who} failed", f"{code.name}: {error.details()}", f"see the {target.server}'s log",
        reason="unavailable",
    )  # fmt: skip


def _pem(file: Path) -> bytes:
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise PenstockError(
            f"cannot read {file}", error.strerror or str(error),
            "name readable files: a certificate, its key, and the CA of the manager's certificate",
        ) from error  # fmt: skip
    return raw


def _check(certificate: Path, key: Path, authority: Path) -> None:
    """Raises `PenstockError` for files that gRPC would reject without saying why."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        # Without the password callback OpenSSL would prompt on the terminal.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (ssl.SSLError, ValueError) as error:
        raise PenstockError(
            f"{certificate} and {key} cannot be used", str(getattr(error, "reason", "") or error),
            "name a certificate and its own key without a password, both in PEM format",
        ) from error  # fmt: skip
    try:
        context.load_verify_locations(authority)
    except (ssl.SSLError, ValueError) as error:
        raise PenstockError(
            f"{authority} cannot be used", str(getattr(error, "reason", "") or error),
            "name the certificate of the CA that signs the manager's certificate, in PEM format",
        ) from error  # fmt: skip
