"""`Board`: memory in which the cards of one node read what each of them has written.

It is a memfd of the node's first card, which the others map. All cards make the same exchanges in
the same order, of the same sizes, so each of them knows where the others write without being told;
what they tell are two counts, on which they wait by futex(2). A socket would cost a card with a
small quota more time than most of what is sent through it.

It needs a processor that shows stores to others in their order, as x86 does, since Python has no
barriers.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import mmap
import os
import platform
import secrets
import socket
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PART_BYTES = 32 << 20  # of each card; no more of it is in use than was ever written
_HEADER_BYTES = mmap.PAGESIZE  # of each card, before its part
_ALIGNMENT_BYTES = 64
_POSTED, _READ = 0, 64  # places of the counts: each has a cache line of its own
_NOT_YET, _DONE, _FAILED = 0, 1, 2  # what a card's word after its part of a slot says
_WORD_BYTES = _ALIGNMENT_BYTES
_MEETS_WITHIN_S = 10.0
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_FUTEX, _WAIT, _WAKE = 202, 0, 1  # of x86-64
_MOST = (1 << 31) - 1
_MOST_CARDS = 128  # that ask the first one at the same time


class NoBoardError(Exception):
    """The cards have no memory in common."""


class Slot:
    """The place of one exchange on the board.

    After all have posted, a card may change its own bytes, and `tell` the others when it is done.

    Attributes:
        rows: Bytes of each card.
    """

    def __init__(self, board: Board, number: int, rows: torch.Tensor) -> None:
        self._board, self._number = board, number
        self.rows = rows[:, :-_WORD_BYTES]
        self._words = rows.data_ptr() + rows.shape[1] - _WORD_BYTES
        self._word(board.own).value = _NOT_YET

    def _word(self, place: int) -> ctypes.c_uint32:
        return ctypes.c_uint32.from_address(self._words + place * self.rows.stride(0))

    def post(self) -> None:
        """The own bytes are written."""
        self._board.post(self._number)

    def wait(self) -> None:
        """Returns when all cards have written theirs."""
        self._board.wait_posted(self._number)

    def tell(self, *, has_failed: bool = False) -> None:
        """The own bytes are changed as well, or cannot be."""
        self._board.tell(self._word(self._board.own), _FAILED if has_failed else _DONE)

    def wait_told(self, place: int) -> bool:
        """Waits until the card at this place has called `tell`; False if it has failed."""
        self.wait()
        word = self._word(place)
        while word.value == _NOT_YET:
            self._board.wait_changed(word, _NOT_YET)
        return word.value == _DONE

    def close(self) -> None:
        """All bytes are read: the cards may write there again."""
        self._board.close(self._number)


class Board:
    """The memory of all cards of a node, from the view of one of them.

    Threads may share its slots, but one alone may call `place` and `Slot.close`.

    Attributes:
        own: The place of this card among those of its node.
    """

    def __init__(self) -> None:
        """Makes a socket at which others get the memory, should it be this card's.

        Raises:
            NoBoardError: this system has no such memory, or another order of stores.
        """
        if platform.machine() not in {"x86_64", "AMD64"}:
            raise NoBoardError("stores are seen in another order")
        self._secret = secrets.token_bytes(16)
        self._listener: socket.socket | None = None
        self._descriptor = -1
        try:
            self._node = _node()
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(b"\0penstock-cards-" + secrets.token_hex(8).encode())
            self._listener.listen(_MOST_CARDS)
        except OSError as error:
            self.end()
            raise NoBoardError(str(error)) from error
        self._next_number = self._next = 0
        self._past: deque[tuple[int, int, int]] = deque()  # number, first and end, oldest first
        self._open: set[int] = set()
        self._libc = ctypes.CDLL(None)

    def said(self) -> bytes:
        """On which node this card is, and how others get its memory."""
        address = self._listener.getsockname().hex() if self._listener is not None else ""
        said = {"node": self._node, "address": address, "secret": self._secret.hex()}
        return json.dumps(said).encode()

    def meet(self, own: int, said: Sequence[bytes]) -> None:
        """Maps the memory of a node, given what its cards have said; `own`: the place of this one.

        Raises:
            NoBoardError: they cannot have it, such as when the first card cannot be reached.
        """
        self.own, self._cards = own, len(said)
        self._size_bytes = self._cards * (_HEADER_BYTES + PART_BYTES)
        try:
            told = [json.loads(one) for one in said]
            if own == 0:
                self._make()
                self._give({bytes.fromhex(one["secret"]) for one in told[1:]})
            else:
                self._get(bytes.fromhex(told[0]["address"]))
            self._map()
        except (OSError, KeyError, ValueError) as error:
            raise NoBoardError(str(error)) from error
        finally:
            self.end()

    def _make(self) -> None:
        self._descriptor = os.memfd_create("cards", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._descriptor, self._size_bytes)
        fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, _SEALS)

    def end(self) -> None:
        """Closes what is needed to meet. May be called again."""
        if self._listener is not None:
            self._listener.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._listener, self._descriptor = None, -1

    def _give(self, secrets_left: set[bytes]) -> None:
        """Passes the memory once for each card, to the connection that sends the card's secret."""
        listener = self._listener
        if listener is None:
            raise NoBoardError("it has met others before")
        until_s = time.monotonic() + _MEETS_WITHIN_S
        while secrets_left:
            listener.settimeout(max(until_s - time.monotonic(), 0.001))
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(max(until_s - time.monotonic(), 0.001))
                secret = connection.recv(len(self._secret), socket.MSG_WAITALL)
                if secret in secrets_left:
                    secrets_left.discard(secret)
                    socket.send_fds(connection, [b"m"], [self._descriptor])

    def _get(self, address: bytes) -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_MEETS_WITHIN_S)
            connection.connect(address)
            connection.sendall(self._secret)
            _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
        if len(descriptors) != 1:
            raise NoBoardError("the first card gives no memory")
        self._descriptor = descriptors[0]

    def _map(self) -> None:
        if fcntl.fcntl(self._descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise NoBoardError("the first card's memory could be shrunk")
        memory = mmap.mmap(self._descriptor, self._size_bytes)
        rows = torch.frombuffer(memory, dtype=torch.uint8).view(self._cards, -1)
        self._contents = rows[:, _HEADER_BYTES:]
        places = range(0, self._size_bytes, _HEADER_BYTES + PART_BYTES)
        self._posted = [ctypes.c_uint32.from_buffer(memory, one + _POSTED) for one in places]
        self._read = [ctypes.c_uint32.from_buffer(memory, one + _READ) for one in places]

    def place(self, size_bytes: int) -> Slot | None:
        """A place for so many bytes of each card; None: there is none, which all cards find alike.

        Waits until the others have read what was there.
        """
        size_bytes = -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES + _WORD_BYTES
        if size_bytes > PART_BYTES:
            return None
        is_wrapped = self._next + size_bytes > PART_BYTES
        first = 0 if is_wrapped else self._next
        overwritten = []
        for number, begin, end in self._past:
            is_tail = is_wrapped and begin >= self._next
            if not is_tail and not (begin < first + size_bytes and first < end):
                break
            overwritten.append(number)
        if not self._open.isdisjoint(overwritten):
            return None
        for number in overwritten:
            self._past.popleft()
            for card in range(self._cards):
                self._await(self._read[card], number + 1)
        return self._take(first, first + size_bytes)

    def _take(self, first: int, end: int) -> Slot:
        number = self._next_number
        self._next_number, self._next = number + 1, end
        self._past.append((number, first, end))
        self._open.add(number)
        return Slot(self, number, self._contents[:, first:end])

    def post(self, number: int) -> None:
        """What `Slot.post` says."""
        self.tell(self._posted[self.own], number + 1)

    def wait_posted(self, number: int) -> None:
        """What `Slot.wait` says."""
        for word in self._posted:
            self._await(word, number + 1)

    def close(self, number: int) -> None:
        """What `Slot.close` says."""
        self._open.discard(number)
        self.tell(self._read[self.own], min(self._open, default=self._next_number))

    def tell(self, word: ctypes.c_uint32, count: int) -> None:
        """Changes a word of the memory, and wakes who waits for that."""
        word.value = count & 0xFFFFFFFF
        self._libc.syscall(_FUTEX, ctypes.byref(word), _WAKE, _MOST)

    def _await(self, word: ctypes.c_uint32, count: int) -> None:
        while (seen := word.value) != count & 0xFFFFFFFF and (count - seen) & 0xFFFFFFFF <= _MOST:
            self.wait_changed(word, seen)

    def wait_changed(self, word: ctypes.c_uint32, seen: int) -> None:
        """Waits, as long as a word of the memory is as it was seen; may return early."""
        self._libc.syscall(_FUTEX, ctypes.byref(word), _WAIT, seen, None)


def nodes_of(said: Mapping[int, bytes], cards: int) -> list[list[int]]:
    """The cards of each node, given what each card has said.

    Raises:
        NoBoardError: a card has said nothing.
    """
    nodes: dict[str, list[int]] = {}
    try:
        for card in range(cards):
            nodes.setdefault(json.dumps(json.loads(said[card])["node"]), []).append(card)
    except (KeyError, TypeError, ValueError) as error:
        raise NoBoardError(f"a card says not where it is: {error}") from error
    return list(nodes.values())


def _node() -> list[str | int]:
    """What cards on the same node and in the same network namespace say alike."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return [boot, Path("/proc/self/ns/net").stat().st_ino, os.geteuid()]
