"""Hostile peers: whatever they send, nothing hangs, grows, or becomes another request's reply."""

from __future__ import annotations

import socket
import time
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.card_link.support.cards import ended, link_to, on_unix_socket, start
from tests.card_link.support.peer import as_worker
from tests.card_link.support.worker import COUNT, ECHO, KINDS

from penstock.card.link import (
    EXIT_PROTOCOL,
    CardError,
    LinkSettings,
    OperationError,
    UnixEndpoint,
    frame,
)
from penstock.card.link.errors import ProtocolError
from penstock.card.link.frame import ERROR, EVENT, HEADER_BYTES, PING, PONG, REPLY, encode
from penstock.card.link.kinds import Kinds

MOST = 1 << 20
KIND = st.one_of(st.integers(0, 30), st.sampled_from([ECHO, COUNT, PONG, 0xFFFF]))
FLAGS = st.one_of(st.integers(0, 16), st.sampled_from([REPLY, REPLY | ERROR, EVENT]))
NUMBER = st.one_of(st.integers(0, 4), st.integers(0, 2**64 - 1))


def header(kind: int, flags: int, number: int, length: int) -> bytes:
    """A correct header for a body of a length that nobody sends."""
    fields = frame._FIELDS.pack(frame.MAGIC, 1, kind, flags, 0, length, number)
    return fields + frame._CRC.pack(frame.zlib.crc32(fields))


HOSTILE = st.one_of(
    st.binary(max_size=200),
    st.builds(header, KIND, FLAGS, NUMBER, st.integers(0, 2**32 - 1)),
    st.builds(
        lambda kind, flags, number, body: b"".join(encode(1, kind, flags, number, [body])),
        KIND, FLAGS, NUMBER, st.binary(max_size=100),
    ),
)  # fmt: skip


@given(stream=st.lists(HOSTILE, max_size=8).map(b"".join))
def test_a_decoder_takes_no_more_memory_than_its_bounds(stream):
    decoder = frame.FrameDecoder(1, MOST)
    tracemalloc.start()
    try:
        at = 0
        while at < len(stream):
            room = decoder.room()
            count = min(len(room), len(stream) - at)
            room[:count] = stream[at : at + count]
            at += count
            decoder.filled(count)
            try:
                while decoder.next() is not None:
                    pass
            except ProtocolError:
                break
        assert tracemalloc.get_traced_memory()[1] < MOST + (64 << 10)
    finally:
        tracemalloc.stop()


@example(stream=b"".join(encode(1, ECHO, REPLY | ERROR, 1, [b"\0"])))
@settings(max_examples=60)
@given(stream=st.lists(HOSTILE, min_size=1, max_size=5).map(b"".join))
def test_a_program_gets_an_error_or_its_reply_from_a_hostile_worker(stream):
    def act(peer):
        peer.hear()
        peer.connection.sendall(stream)

    link = as_worker(act, LinkSettings(silent_s=5))
    try:
        body = bytes(link.request(ECHO, b"asked").result(10))
    except (CardError, OperationError):
        pass
    else:
        assert b"".join(encode(1, ECHO, REPLY, 1, [body])) in stream
    link.abort()


@pytest.fixture(scope="module")
def listening(tmp_path_factory):
    path = tmp_path_factory.mktemp("hostile") / "private" / "card"
    path.parent.mkdir(0o700)
    with ended(start("--unix", path)) as process:
        deadline_s = time.monotonic() + 10
        while not path.exists() and time.monotonic() < deadline_s:
            time.sleep(0.02)
        yield path, process


@settings(max_examples=60)
@given(stream=st.lists(HOSTILE, max_size=5).map(b"".join))
def test_a_worker_turns_hostile_callers_away_before_it_trusts_them(listening, stream):
    path, process = listening
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(5)
        caller.connect(str(path))
        caller.sendall(stream)
        caller.shutdown(socket.SHUT_WR)
        while caller.recv(4096):
            pass
    assert process.poll() is None


def test_the_worker_still_serves_its_program_after_all_of_them(listening):
    link = link_to(UnixEndpoint(listening[0]))
    assert link.request(ECHO, b"on").result() == b"on"
    link.abort()


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"\0" * HEADER_BYTES, "no frame of Penstock"),
        (header(ECHO, 0, 1, 2**32 - 1), "at most 268435456"),
        (header(99, 0, 0, 0), "unknown kind 99"),
        (header(99, 0, 1, 0), "not allowed"),
        (header(ECHO, REPLY, 1, 0), "not allowed"),
        (header(PING, 0, 0, 2) + b"\xff\xff", "cannot be read"),
    ],
    ids=["noise", "too long", "unknown kind", "unknown request", "reply", "bad ping"],
)
def test_a_front_end_that_breaks_the_protocol_is_told_why_and_the_worker_ends(tmp_path, sent, why):
    with on_unix_socket(tmp_path) as (link, process):
        link._queue.put([sent])
        assert process.wait(10) == EXIT_PROTOCOL
        with pytest.raises(CardError) as caught:
            link.request(ECHO).result()
        assert why in str(caught.value)
        assert "this side is Penstock" in str(caught.value)


def test_kinds_of_the_user_do_not_meet_those_of_the_link():
    assert min(KINDS) >= frame.FIRST_KIND
    with pytest.raises(ValueError, match="from 16 to 65535"):
        Kinds({15: "mine"})
