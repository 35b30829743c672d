"""Options of `penstock agent` about its compute pool."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.node.agent.pool_devices import PoolOptions
    from penstock.node.rpc.pool_endpoint import PoolEndpoint


def pool_endpoint(
    pool: str | None, certificate: Path | None, key: Path | None, authority: Path | None
) -> PoolEndpoint | None:
    """The managers' addresses and this node's certificate, None if the node is to join no pool.

    Raises:
        PenstockError: an address is invalid, or a file is missing or unusable.
    """
    if pool is None:
        return None
    from penstock.node.rpc.pool_endpoint import PoolEndpoint

    addresses = tuple(word.strip() for word in pool.split(","))
    endpoint = PoolEndpoint(addresses, certificate, key, authority)
    endpoint.check()
    return endpoint


def host_for_others(listen: str, endpoint: PoolEndpoint | None) -> str:
    """The address at which other nodes reach what listens at `listen` (HOST:PORT).

    Of an agent that listens at all addresses it is the one from which it reaches its manager.
    """
    host = listen.rpartition(":")[0].strip("[]")
    if host not in {"", "0.0.0.0", "::"} or endpoint is None:  # noqa: S104 - compared
        return host
    manager, _, port = endpoint.addresses[0].rpartition(":")
    try:
        for family, kind, number, _, address in socket.getaddrinfo(
            manager.strip("[]"), int(port), type=socket.SOCK_DGRAM
        ):
            with socket.socket(family, kind, number) as probe:
                probe.connect(address)  # sends nothing
                return str(probe.getsockname()[0])
    except (OSError, ValueError):
        pass
    return socket.gethostname()


def pool_options(
    pool: str | None,
    devices: str | None,
    tflops: Sequence[str],
    precision: str,
    rates: Path | None = None,
) -> PoolOptions | None:
    """The devices for the pool. Raises `PenstockError` if an option is invalid."""
    from penstock.devices.rate_file import read_rates
    from penstock.devices.rates import PRECISIONS
    from penstock.model import PenstockError
    from penstock.node.agent.pool_devices import PoolOptions

    if precision not in PRECISIONS:
        raise PenstockError(
            f"unknown precision {precision!r} for --pool-precision",
            f"models are rated at {', '.join(PRECISIONS)}", "name the one that the pool has",
        )  # fmt: skip
    if pool is None:
        if devices is not None or tflops or rates is not None:
            raise PenstockError(
                "devices for a pool are given without the pool", "--pool is missing",
                "add --pool HOST:PORT",
            )  # fmt: skip
        return None
    words = () if devices is None else (devices,)
    table = read_rates(rates) if rates is not None else {}
    return PoolOptions(words, dict(map(_rating, tflops)), precision, table)


def _rating(text: str) -> tuple[str, float]:
    from penstock.model import PenstockError

    device, _, figure = text.rpartition("=")
    try:
        if device:
            return device, float(figure)
    except ValueError:
        pass
    raise PenstockError(
        f"invalid value {text!r} for --pool-tflops", "it is not DEVICE=TFLOPS",
        "write it like 0=60, or with the device's UUID",
    )  # fmt: skip
