"""Decoding of the messages on a tenant's handshake socket (`shim/native/abi/handshake.h`)."""

from __future__ import annotations

from dataclasses import dataclass

from penstock_shim._limits import MAX_SLOTS
from penstock_shim._native import ffi, lib
from penstock_shim._page_file import text_of

SOCKET = "handshake"  # name of the socket in the tenant's directory
MESSAGE_BYTES = int(ffi.sizeof("penstock_handshake"))


@dataclass(frozen=True)
class Hello:
    """A well-formed handshake. Its content is what the sender claims."""

    slot: int
    owner: int  # the slot's owner word
    pid: int  # in the sender's pid namespace
    start_ticks: int  # start time as the sender sees it, 0 if unknown
    abi_version: int
    library: str  # release number of the shim


def parse(raw: bytes) -> Hello:
    """Decodes a handshake. Raises ValueError with the reason if `raw` is not a handshake."""
    if len(raw) != MESSAGE_BYTES:
        raise ValueError(f"the message has {len(raw)} bytes instead of {MESSAGE_BYTES}")
    message = ffi.cast("penstock_handshake *", ffi.from_buffer(raw))
    if message.magic != lib.PENSTOCK_HANDSHAKE_MAGIC:
        raise ValueError("the message is not a handshake")
    if message.version != lib.PENSTOCK_HANDSHAKE_VERSION:
        raise ValueError(f"the handshake has the unknown version {message.version}")
    is_ended = b"\0" in bytes(ffi.buffer(message.library))
    if message.slot >= MAX_SLOTS or not 0 < message.pid < 1 << 31 or not is_ended:
        raise ValueError("a field of the handshake is out of bounds")
    return Hello(
        slot=int(message.slot),
        owner=int(message.owner),
        pid=int(message.pid),
        start_ticks=int(message.start_ticks),
        abi_version=int(message.abi_version),
        library=text_of(message.library),
    )
