"""Parser for HOST:PORT addresses."""

from __future__ import annotations

from penstock.model.errors import PenstockError


def read_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`. Raises `PenstockError` if `text` has another format."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise PenstockError(
            f"invalid address {text!r}", "it is not HOST:PORT", "write it like 127.0.0.1:9470"
        )
    return host.strip("[]"), int(port)
