"""Frames: any split of the bytes gives the same frames, and no fault a frame that nobody sent."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.card.link.errors import ProtocolError
from penstock.card.link.frame import HEADER_BYTES, FrameDecoder, encode

LARGE = 300 << 10  # more than the decoder's own buffer
MOST = 1 << 20
NUMBERS = st.integers(0, 2**64 - 1)
FRAMES = st.tuples(
    st.integers(0, 0xFFFF),
    st.integers(0, 15),
    NUMBERS,
    st.one_of(
        st.binary(max_size=100),
        st.sampled_from([4096, 4097, 65_536, 65_537, LARGE]).map(lambda size: b"\5" * size),
    ),
)


def decoded(stream: bytes, cuts: list[int], decoder: FrameDecoder) -> list[tuple]:
    frames, at = [], 0
    ends = sorted({cut for cut in cuts if 0 < cut < len(stream)} | {len(stream)})
    for end in ends:
        while at < end:
            room = decoder.room()
            count = min(len(room), end - at)
            assert count > 0
            room[:count] = stream[at : at + count]
            decoder.filled(count)
            at += count
            while (frame := decoder.next()) is not None:
                frames.append((frame.kind, frame.flags, frame.number, bytes(frame.body)))
    return frames


def stream_of(frames) -> bytes:
    return b"".join(
        b"".join(encode(1, kind, flags, number, [body])) for kind, flags, number, body in frames
    )


@given(frames=st.lists(FRAMES, max_size=6), data=st.data())
def test_any_split_of_the_stream_gives_the_same_frames(frames, data):
    stream = stream_of(frames)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=20))
    assert decoded(stream, cuts, FrameDecoder(1, MOST)) == frames


@given(parts=st.lists(st.binary(max_size=3000), max_size=5), as_views=st.booleans())
def test_a_body_is_all_its_parts_one_after_another(parts, as_views):
    given_parts = [memoryview(part) for part in parts] if as_views else parts
    stream = b"".join(encode(1, 16, 0, 0, given_parts))
    assert decoded(stream, [], FrameDecoder(1, MOST)) == [(16, 0, 0, b"".join(parts))]


def test_parts_may_be_views_of_other_types_and_of_no_length():
    numbers = memoryview(b"abcdefgh").cast("I").cast("B").cast("I", [2, 1])
    assert decoded(
        b"".join(encode(1, 16, 0, 0, [numbers, memoryview(b"").cast("I"), bytearray(b"!")])),
        [], FrameDecoder(1, MOST),
    ) == [(16, 0, 0, b"abcdefgh!")]  # fmt: skip


@given(
    frames=st.lists(FRAMES, min_size=1, max_size=4),
    place=st.integers(0, HEADER_BYTES - 1),
    which=st.integers(0, 3),
    change=st.integers(1, 255),
)
def test_a_header_with_a_fault_is_an_error_and_never_another_frame(frames, place, which, change):
    which %= len(frames)
    stream = bytearray(stream_of(frames))
    stream[len(stream_of(frames[:which])) + place] ^= change
    decoder = FrameDecoder(1, MOST)
    got = []
    with pytest.raises(ProtocolError):
        got += decoded(bytes(stream), [len(stream_of(frames[:which]))], decoder)
    assert len(got) <= which


@given(stream=st.binary(min_size=HEADER_BYTES, max_size=500))
def test_bytes_that_are_no_frames_are_refused(stream):
    with pytest.raises(ProtocolError):
        decoded(stream, [], FrameDecoder(1, MOST))


def test_a_body_may_have_the_bound_and_no_byte_more():
    decoder = FrameDecoder(1, LARGE)
    assert len(decoded(stream_of([(16, 0, 0, bytes(LARGE))]), [], decoder)[0][3]) == LARGE
    header = stream_of([(16, 0, 0, bytes(LARGE + 1))])[:HEADER_BYTES]
    with pytest.raises(ProtocolError, match=f"{LARGE + 1} bytes, at most {LARGE}"):
        decoded(header, [], decoder)


def test_a_frame_of_another_version_is_refused():
    with pytest.raises(ProtocolError, match="version 2, not 1"):
        decoded(b"".join(encode(2, 16, 0, 0, [])), [], FrameDecoder(1, MOST))


def test_unknown_flags_are_refused():
    with pytest.raises(ProtocolError, match="unknown flags"):
        decoded(b"".join(encode(1, 16, 16, 0, [])), [], FrameDecoder(1, MOST))


def test_a_large_body_is_received_where_the_reader_wants_it():
    wanted = memoryview(bytearray(LARGE))
    body = os.urandom(LARGE)
    decoder = FrameDecoder(1, MOST)
    decoder.on_header = lambda header: wanted if header.length == LARGE else None
    decoded(stream_of([(16, 0, 0, b"small"), (16, 0, 0, body)]), [7, 1000, 5000], decoder)
    assert wanted == body


def test_more_than_a_frame_may_have_is_not_sent():
    view = memoryview(bytearray(64 << 20))
    with pytest.raises(ValueError, match="may have 268435456 bytes"):
        encode(1, 16, 0, 0, [view, view, view, view, b"!"])
    assert len(encode(1, 16, 0, 0, [view, view, view, view])) == 5
