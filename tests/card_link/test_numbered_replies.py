"""Replies are numbered: none is ever taken for another request's."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.card_link.support.peer import as_worker
from tests.card_link.support.worker import COUNT, ECHO, MAKE

from penstock.card.link import CardError, OperationError, ReplyTimeoutError
from penstock.card.link.frame import ERROR, EVENT, HEADER_BYTES, REPLY, encode


@given(order=st.permutations(range(6)))
def test_replies_that_come_in_any_order_reach_their_requests(order):
    def act(peer):
        asked = [peer.hear() for _ in order]
        for which in order:
            frame = asked[which]
            peer.say(frame.kind, bytes(frame.body), REPLY, frame.number)

    link = as_worker(act)
    replies = [link.request(ECHO, b"%d" % number) for number in range(len(order))]
    assert [bytes(reply.result(5)) for reply in replies] == [b"%d" % n for n in range(len(order))]
    link.abort()


def test_a_late_reply_is_never_the_next_requests_reply():
    """A request is given up; its reply comes when another request waits."""
    given_up = threading.Event()

    def act(peer):
        first = peer.hear()
        given_up.wait(10)
        second = peer.hear()
        peer.say(first.kind, b"stale", REPLY, first.number)
        peer.say(second.kind, b"right", REPLY, second.number)

    link = as_worker(act)
    first = link.request(ECHO, b"1")
    with pytest.raises(ReplyTimeoutError):
        first.result(0.05)
    second = link.request(ECHO, b"2")
    given_up.set()
    assert second.result(5) == b"right"
    assert first.result(5) == b"stale"
    link.abort()


@pytest.mark.parametrize("what", ["unknown", "used", "of another kind", "zero", "event", "request"])
def test_a_reply_that_belongs_to_no_request_ends_the_link(what):
    def act(peer):
        frame = peer.hear()
        number = frame.number
        if what == "used":
            peer.say(frame.kind, b"right", REPLY, number)
            peer.hear()
        kind = COUNT if what == "of another kind" else frame.kind
        wrong = {"unknown": number + 1, "zero": 0}.get(what, number)
        flags = {"event": EVENT, "request": 0}.get(what, REPLY)
        peer.say(kind, b"wrong", flags, wrong)
        peer.connection.recv(1)

    link = as_worker(act)
    reply = link.request(ECHO)
    if what == "used":
        assert reply.result(5) == b"right"
        reply = link.request(ECHO)
    with pytest.raises(CardError, match=r"card 1 \(gpu 0 of node b, pid 4711\) broke the protocol"):
        reply.result(5)
    with pytest.raises(CardError, match=r"this side is Penstock [0-9.]+, the other side Penstock"):
        link.post(COUNT)


@given(place=st.integers(0, HEADER_BYTES - 1), change=st.integers(1, 255))
def test_a_reply_with_a_fault_in_its_header_is_nobodys_reply(place, change):
    """Two requests of one kind and size wait: the likeliest victims of a wrong number."""

    def act(peer):
        first, _ = peer.hear(), peer.hear()
        frame = bytearray(b"".join(encode(1, first.kind, REPLY, first.number, [b"first"])))
        frame[place] ^= change
        peer.connection.sendall(frame)
        peer.connection.recv(1)

    link = as_worker(act)
    replies = [link.request(ECHO), link.request(ECHO)]
    for reply in replies:
        with pytest.raises(CardError, match="card 1"):
            reply.result(5)


def test_an_error_reply_is_never_written_to_the_callers_memory():
    def act(peer):
        frame = peer.hear()
        peer.say(frame.kind, b"\x12\x04abcd", REPLY | ERROR, frame.number)

    memory = memoryview(bytearray(6))
    link = as_worker(act)
    with pytest.raises(OperationError, match="abcd"):
        link.request(MAKE, into=memory).result(5)
    assert memory == bytes(6)
    link.abort()
