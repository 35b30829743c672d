"""The frames between the front-end of a virtual card and its workers: kinds and bodies."""

from __future__ import annotations

import struct
from array import array
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

FREE = 0  # in the place of an operation's number: one buffer's number follows, which is forgotten
MOST_PART_BYTES = 64 << 20  # of a buffer in one frame; a link limits its frames
_MOST_PROBE_S = 60.0
_COUNTS = struct.Struct("<II")
_UPLOAD = struct.Struct("<Qq")
_STATISTICS = struct.Struct("<6Q")
_PROBE = struct.Struct("<d")
_RATES = struct.Struct("<2d")
_POISON = struct.Struct("<Qq")
_RANGE = struct.Struct("<QQQ")
_FIGURES = struct.Struct("<14Q")
_TRACE = struct.Struct("<?")
_CLOCK = struct.Struct("<Q")


class Kind(IntEnum):
    """What a frame asks a worker for. Requests have replies; the others have none."""

    DEFINE = 32  # an Operation (card_ops.proto)
    RUN = 33  # calls of operations
    UPLOAD = 34  # a new buffer with its bytes
    ALLOCATE = 35  # a new buffer without
    DOWNLOAD = 36  # request: bytes of a buffer
    SYNCHRONIZE = 37  # request: answers when all before it is done on the device
    COMPUTE = 38  # request: one call whose results have shapes that depend on data
    POISONED = 39  # request: the buffers that are missing
    POISON = 40  # buffers that are missing on another card
    STATISTICS = 41  # request: memory in use, counts
    SET_UP = 42  # request: a Setup; answers with a Meeting, where it listens for other cards
    WRITE = 43  # bytes of a buffer that was allocated
    PROBE = 44  # request: multiplications a second
    MEET = 45  # request: a Meeting of all cards; answers when it is connected to them
    FIGURES = 47  # request: what the card has done so far
    TRACE = 46  # request: begins or ends a trace; answers the time by the card's clock
    FORGET = 48  # operations that are not called any more
    DISMISS = 49  # request, in place of SET_UP: the program's run is over
    FAILED = 64  # event from a worker: a Failure
    TRACED = 65  # event from a worker: TraceEvents


KINDS = {int(kind): kind.name.lower() for kind in Kind}


class Calls(NamedTuple):
    """Calls of operations, one after another, as numbers.

    Each call is the operation's number, the buffers of its arguments, its integers, and the numbers
    of its new buffers; the floats of all calls are in `reals`.
    """

    numbers: array[int]
    reals: array[float]


def pack_calls(numbers: list[int], reals: list[float]) -> bytes:
    """The body of RUN."""
    return b"".join((_COUNTS.pack(len(numbers), len(reals)), array("q", numbers).tobytes(),
                     array("d", reals).tobytes()))  # fmt: skip


def unpack_calls(body: memoryview) -> Calls:
    """The calls in the body of RUN. Raises `ValueError` if it has another length than it says."""
    number_count, real_count = _COUNTS.unpack_from(body)
    end = _COUNTS.size + 8 * number_count
    if len(body) != end + 8 * real_count:
        raise ValueError(f"calls of {len(body)} bytes say {number_count} and {real_count} numbers")
    numbers, reals = array("q"), array("d")
    numbers.frombytes(body[_COUNTS.size : end])
    reals.frombytes(body[end:])
    return Calls(numbers, reals)


def pack_upload(number: int, size_bytes: int = -1) -> bytes:
    """The head of UPLOAD, before the bytes; and with a size the body of ALLOCATE.

    In the head of WRITE, the place of the first byte stands instead of the size.
    """
    return _UPLOAD.pack(number, size_bytes)


def unpack_upload(body: memoryview) -> tuple[int, int, memoryview]:
    """The buffer's number, the size, and the bytes. Raises `ValueError`."""
    if len(body) < _UPLOAD.size:
        raise ValueError(f"an upload of {len(body)} bytes")
    number, size_bytes = _UPLOAD.unpack_from(body)
    return number, size_bytes, body[_UPLOAD.size :]


def upload_frames(
    number: int, content: memoryview
) -> Iterator[tuple[Kind, tuple[bytes | memoryview, ...]]]:
    """The frames that make a buffer with this content, as kinds and parts of bodies."""
    size_bytes = len(content)
    if size_bytes <= MOST_PART_BYTES:
        yield Kind.UPLOAD, (pack_upload(number, size_bytes), content)
        return
    yield Kind.ALLOCATE, (pack_upload(number, size_bytes),)
    for first in range(0, size_bytes, MOST_PART_BYTES):
        part = content[first : first + MOST_PART_BYTES]
        yield Kind.WRITE, (pack_upload(number, first), part)


def pack_range(number: int, first: int, end: int) -> bytes:
    """The body of DOWNLOAD: bytes `first` to `end` of a buffer, `end` not included."""
    return _RANGE.pack(number, first, end)


def unpack_range(body: memoryview) -> tuple[int, int, int]:
    """The buffer's number, the first byte and the end. Raises `ValueError`."""
    if len(body) != _RANGE.size:
        raise ValueError(f"a range of {len(body)} bytes")
    number, first, end = _RANGE.unpack(body)
    return number, first, end


class Statistics(NamedTuple):
    """A card's use of memory: the answer to STATISTICS."""

    buffers: int
    used_bytes: int  # of the buffers
    peak_bytes: int  # the most that they used
    free_bytes: int  # of the card
    total_bytes: int
    operations: int  # that it knows


def pack_statistics(statistics: Statistics) -> bytes:
    """The body of the answer to STATISTICS."""
    return _STATISTICS.pack(*statistics)


def unpack_statistics(body: memoryview) -> Statistics:
    """The statistics in a body. Raises `ValueError`."""
    if len(body) != _STATISTICS.size:
        raise ValueError(f"statistics of {len(body)} bytes")
    return Statistics(*_STATISTICS.unpack(body))


class Figures(NamedTuple):
    """What a card has done since its start: the answer to FIGURES. Times by the card's clock."""

    at_ns: int
    operations: int
    busy_ns: int  # it executed what is its own
    exchanging_ns: int  # it exchanged data with other cards, or waited for them
    idle_ns: int  # it waited for the program
    uploaded_bytes: int
    downloaded_bytes: int
    gathers: int
    gathered_bytes: int  # which the other cards sent
    sums: int
    summed_bytes: int
    used_bytes: int  # of memory
    peak_bytes: int
    total_bytes: int


def pack_figures(figures: Figures) -> bytes:
    """The body of the answer to FIGURES."""
    return _FIGURES.pack(*figures)


def unpack_figures(body: memoryview) -> Figures:
    """The figures in a body. Raises `ValueError`."""
    if len(body) != _FIGURES.size:
        raise ValueError(f"figures of {len(body)} bytes")
    return Figures(*_FIGURES.unpack(body))


def pack_trace(is_on: bool) -> bytes:
    """The body of TRACE."""
    return _TRACE.pack(is_on)


def unpack_trace(body: memoryview) -> bool:
    """Whether a trace begins. Raises `ValueError`."""
    if len(body) != _TRACE.size:
        raise ValueError(f"an order to trace of {len(body)} bytes")
    return bool(_TRACE.unpack(body)[0])


def pack_clock(now_ns: int) -> bytes:
    """The body of the answer to TRACE."""
    return _CLOCK.pack(now_ns)


def unpack_clock(body: memoryview) -> int:
    """The time in a body. Raises `ValueError`."""
    if len(body) != _CLOCK.size:
        raise ValueError(f"a time of {len(body)} bytes")
    return int(_CLOCK.unpack(body)[0])


def pack_numbers(numbers: Iterable[int]) -> bytes:
    """The body of FORGET, numbers of operations; of the answer to POISONED, those of buffers."""
    return array("Q", numbers).tobytes()


def unpack_numbers(body: memoryview) -> list[int]:
    """The numbers in a body. Raises `ValueError`."""
    numbers = array("Q")
    numbers.frombytes(body)
    return numbers.tolist()


def pack_poison(sizes_bytes: Mapping[int, int]) -> bytes:
    """The body of POISON: buffers and their sizes; -1: as large as the card has it."""
    return b"".join(_POISON.pack(*one) for one in sizes_bytes.items())


def unpack_poison(body: memoryview) -> dict[int, int]:
    """The buffers and their sizes in a body. Raises `ValueError`."""
    if len(body) % _POISON.size:
        raise ValueError(f"poison of {len(body)} bytes")
    return dict(_POISON.iter_unpack(body))


def pack_probe(probe_s: float) -> bytes:
    """The body of PROBE: for how long each kind of work is measured."""
    return _PROBE.pack(probe_s)


def unpack_probe(body: memoryview) -> float:
    """The time in the body of PROBE. Raises `ValueError`."""
    (probe_s,) = _PROBE.unpack(body) if len(body) == _PROBE.size else (-1.0,)
    if not 0 < probe_s <= _MOST_PROBE_S:
        raise ValueError(f"a probe of {probe_s} s")
    return float(probe_s)


def pack_rates(rates: tuple[float, float]) -> bytes:
    """The body of the answer to PROBE."""
    return _RATES.pack(*rates)


def unpack_rates(body: memoryview) -> tuple[float, float]:
    """The rates in a body. Raises `ValueError`."""
    if len(body) != _RATES.size:
        raise ValueError(f"rates of {len(body)} bytes")
    products, convolutions = _RATES.unpack(body)
    if not (0 < products < float("inf") and 0 < convolutions < float("inf")):
        raise ValueError(f"rates of {products} and {convolutions}")
    return products, convolutions
