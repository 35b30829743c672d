"""Journal: what the cards were told since the last snapshot, so that other cards can be told again.

A program's cards do nothing by themselves: each frame changes a card's buffers in the same way each
time. So cards that get the buffers of a snapshot, and then the frames that came after it, have what
the lost ones had.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.card.frames import Kind, pack_poison, unpack_numbers, upload_frames
from penstock_api.v1.card_ops_pb2 import Operation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Part = bytes | memoryview
    Bodies = Sequence[Sequence[Part] | None]  # the body of each card's frame, in parts


class Frame(NamedTuple):
    """A frame for each card. `bodies`: in the cards' order, each in parts; None: no frame."""

    kind: Kind
    bodies: Bodies


class Content(NamedTuple):
    """What each card has of a buffer.

    Attributes:
        parts: The bytes of each card, in pieces; None: the content is missing on all cards.
        sizes_bytes: Their lengths.
    """

    parts: Sequence[Sequence[Part]] | None
    sizes_bytes: Sequence[int]


class Journal:
    """The frames since a snapshot, and that snapshot: by number, what each buffer holds.

    Attributes:
        size_bytes: The bytes of the frames.
        snapshot_bytes: The bytes of the snapshot.
        position: How many frames there are.
    """

    def __init__(self) -> None:
        self.size_bytes = 0
        self.snapshot_bytes = 0
        self._frames: list[Frame] = []
        self._buffers: dict[int, Content] = {}
        self._definitions: dict[int, Frame] = {}  # of operations, at the time of the snapshot

    @property
    def position(self) -> int:
        """How many frames came after the snapshot."""
        return len(self._frames)

    def add(self, kind: Kind, bodies: Bodies) -> None:
        """Notes a frame that changes what a card has, before it is sent."""
        self._frames.append(Frame(kind, bodies))
        self.size_bytes += _size_bytes(bodies)

    def adopt(self, buffers: dict[int, Content], position: int) -> None:
        """Begins at a snapshot, which was taken when the journal had so many frames."""
        for kind, bodies in self._frames[:position]:
            if kind == Kind.DEFINE:
                self._definitions[Operation.FromString(_first(bodies)).number] = Frame(kind, bodies)
            elif kind == Kind.FORGET:
                for number in unpack_numbers(memoryview(_first(bodies))):
                    self._definitions.pop(number, None)
            self.size_bytes -= _size_bytes(bodies)
        del self._frames[:position]
        self._buffers = buffers
        self.snapshot_bytes = sum(_size_bytes(one.parts or ()) for one in buffers.values())

    def replay(self) -> Iterator[Frame]:
        """All frames that give cards without anything what the program's cards have."""
        yield from self._definitions.values()
        for number, content in self._buffers.items():
            yield from _filling(number, content)
        yield from self._frames


def _filling(number: int, content: Content) -> Iterator[Frame]:
    """The frames that make a buffer."""
    if content.parts is None:
        yield Frame(Kind.POISON, [(pack_poison({number: one}),) for one in content.sizes_bytes])
        return
    cards = len(content.parts)
    for card, pieces in enumerate(content.parts):
        whole = memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        for kind, body in upload_frames(number, whole):
            yield Frame(kind, [body if other == card else None for other in range(cards)])


def _first(bodies: Bodies) -> bytes:
    """The first card's body."""
    return b"".join(bodies[0] or ())


def _size_bytes(bodies: Bodies) -> int:
    """The bytes that are kept: cards that get the same part share it."""
    return sum({id(part): len(part) for parts in bodies for part in parts or ()}.values())
