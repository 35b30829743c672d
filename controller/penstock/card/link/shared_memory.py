"""Shared memory of a program and a worker on its node: the way of large bodies to the worker.

A memfd is divided into slots. The program writes a body into a free slot and sends a short frame
that names the slot; the worker reads the body where it is, and tells when it is done. The slots are
few and small, so that they stay in the processors' caches: that is what makes them faster than a
socket.

The memfd is sealed before it is passed on: a peer that could shrink it would end the other side by
SIGBUS.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from queue import SimpleQueue
from typing import TYPE_CHECKING

from penstock.card.link.errors import ProtocolError
from penstock.card.link.frame import HEADER_BYTES, elsewhere

if TYPE_CHECKING:
    from penstock.card.link.frame import Buffers

SLOT_BYTES = 2 << 20
SLOTS = 4
LEAST_BYTES = 512 << 10  # smaller bodies are not faster this way
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_PLACE = struct.Struct("<II")  # slot and length
_CLOSED = -1
_MOST_PARTS = 512  # the kernel takes 1,024


class SlotWriter:
    """The program's side, used by its sender and reader threads."""

    def __init__(self) -> None:
        """Raises OSError if there is no such memory here."""
        self.descriptor = os.memfd_create("card", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, SLOTS * SLOT_BYTES)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(self.descriptor)
            raise
        self._free: SimpleQueue[int] = SimpleQueue()
        self._used: set[int] = set()
        for slot in range(SLOTS):
            self._free.put(slot)

    def takes(self, frame: Buffers) -> bool:
        """Whether a frame's body is of a size for which a slot is faster."""
        if not 1 < len(frame) <= _MOST_PARTS:
            return False
        return LEAST_BYTES <= sum(map(len, frame)) - HEADER_BYTES <= SLOT_BYTES

    def moved(self, frame: Buffers) -> bytes:
        """Waits for a free slot and writes the body there; returns the frame that says where.

        Raises:
            BrokenPipeError: the link has ended.
            OSError: there is no memory.
        """
        slot = self._free.get()
        if slot == _CLOSED:
            raise BrokenPipeError("the link has ended")
        self._used.add(slot)
        length = sum(map(len, frame)) - HEADER_BYTES
        if os.pwritev(self.descriptor, frame[1:], slot * SLOT_BYTES) != length:
            raise OSError("there is no shared memory left on this node")
        return elsewhere(frame[0], _PLACE.pack(slot, length))

    def release(self, body: memoryview) -> None:
        """The worker is done with a slot. Raises `ProtocolError` if it was in no use."""
        slot = int.from_bytes(body, "little")
        if slot not in self._used:
            raise ProtocolError(f"the worker gives back slot {slot}, which it does not have")
        self._used.discard(slot)
        self._free.put(slot)

    def end(self) -> None:
        """Ends waits; the descriptor is closed by `close`, when no thread uses it."""
        self._free.put(_CLOSED)

    def close(self) -> None:
        """Gives the memory back. May be called again."""
        descriptor, self.descriptor = self.descriptor, -1  # soon another file has the number
        if descriptor >= 0:
            os.close(descriptor)


class SlotReader:
    """The worker's side."""

    def __init__(self, descriptor: int) -> None:
        """Maps the memory, to be read alone, and closes the descriptor.

        Raises:
            ProtocolError: it could be shrunk, or is too small.
            OSError: it cannot be mapped.
        """
        try:
            if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise ProtocolError("the program's shared memory is not sealed")
            if os.fstat(descriptor).st_size != SLOTS * SLOT_BYTES:
                raise ProtocolError("the program's shared memory has an unexpected size")
            self._view = memoryview(mmap.mmap(descriptor, SLOTS * SLOT_BYTES, prot=mmap.PROT_READ))
        finally:
            os.close(descriptor)
        self._used: set[int] = set()

    def body(self, place: memoryview) -> tuple[int, memoryview]:
        """The slot and the body of a frame. Raises `ProtocolError` if there is no such place."""
        if len(place) != _PLACE.size:
            raise ProtocolError("a frame names no place in shared memory")
        slot, length = _PLACE.unpack(place)
        if slot >= SLOTS or length > SLOT_BYTES or slot in self._used:
            raise ProtocolError(f"a frame names {length} bytes in slot {slot}, which are not there")
        self._used.add(slot)
        return slot, self._view[slot * SLOT_BYTES :][:length]

    def release(self, slot: int, body: memoryview) -> bytes:
        """The worker is done with a body; returns what tells the program.

        Raises:
            RuntimeError: something still refers to the body.
        """
        try:
            body.release()
        except BufferError as error:
            raise RuntimeError(
                "the handler kept a body that lies in shared memory: it must copy what it keeps"
            ) from error
        self._used.discard(slot)
        return slot.to_bytes(4, "little")
