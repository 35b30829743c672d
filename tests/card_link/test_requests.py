"""Requests, replies, events and faults between a program and a card in another process."""

from __future__ import annotations

import threading
from queue import Queue

import pytest
from tests.card_link.support.cards import on_unix_socket, spawned
from tests.card_link.support.worker import COUNT, ECHO, FAIL, MAKE, NOTICE, SLEEP, SUM

from penstock.card.link import MOST_BODY_BYTES, CardError, OperationError, ReplyTimeoutError


@pytest.fixture(scope="module")
def link():
    with spawned() as card:
        yield card.link


def test_a_request_gets_its_reply(link):
    assert (
        link.request(ECHO, b"one, ", bytearray(b"two"), memoryview(b"!")).result() == b"one, two!"
    )
    assert link.request(ECHO).result() == b""


@pytest.mark.parametrize("size", [1, 4096, 4097, 1 << 16, (1 << 16) + 1, 5_000_000])
def test_a_body_of_any_size_arrives_unchanged_in_both_directions(link, size):
    body = bytes(range(251)) * (size // 251 + 1)
    assert link.request(ECHO, body[:size]).result() == body[:size]


def test_frames_are_executed_in_the_order_in_which_they_were_posted(link):
    first = int(bytes(link.request(COUNT).result()))
    for _ in range(3000):
        link.post(COUNT)
    assert int(bytes(link.request(COUNT).result())) == first + 3001


def test_outstanding_replies_may_be_taken_in_any_order(link):
    replies = [link.request(ECHO, b"%d" % number) for number in range(200)]
    for number in reversed(range(200)):
        assert replies[number].result() == b"%d" % number
    assert replies[7].result() == b"7"


def test_a_reply_is_received_in_the_callers_memory(link):
    for size in (5, 1_000_000):
        memory = memoryview(bytearray(size))
        reply = link.request(MAKE, b"%d 7" % size, into=memory)
        assert reply.result().obj is memory.obj
        assert memory == b"\7" * size


def test_a_reply_of_another_length_than_the_memory_is_an_error_and_not_cut(link):
    memory = memoryview(bytearray(10))
    for size in (9, 11, 1_000_000):
        with pytest.raises(OperationError, match=f"{size} bytes"):
            link.request(MAKE, b"%d 7" % size, into=memory).result()
    assert link.request(ECHO, b"on").result() == b"on"


def test_an_exception_on_the_card_is_the_requests_error_and_the_card_goes_on(link):
    memory = memoryview(bytearray(10))
    with pytest.raises(OperationError) as caught:
        link.request(FAIL, "no such row \u2713\x1b[2J\n".encode(), into=memory).result()
    error = caught.value
    assert (error.kind, error.type_name) == ("fail", "LookupError")
    assert error.text == "no such row \u2713\ufffd[2J\n"
    assert "card 1 (gpu 0 of node b, pid " in str(error)
    assert link.request(ECHO, b"on").result() == b"on"


def test_a_long_error_text_is_cut(link):
    with pytest.raises(OperationError) as caught:
        link.request(FAIL, b"x" * 1_000_000).result()
    assert caught.value.text == "x" * 4096


def test_a_wait_for_a_reply_ends_in_time_and_says_what_the_card_does(link):
    reply = link.request(SLEEP, b"1.4")
    with pytest.raises(ReplyTimeoutError, match=r"no reply has come in 1 s: card 1 .*\(sleep\)"):
        reply.result(1)
    assert not reply.is_done
    assert reply.result() == b""
    assert reply.is_done


def test_what_the_library_does_not_know_is_not_sent(link):
    with pytest.raises(ValueError, match="no kind 99"):
        link.post(99)
    with pytest.raises(ValueError, match=f"may have {MOST_BODY_BYTES} bytes"):
        link.request(ECHO, memoryview(bytearray(MOST_BODY_BYTES + 1)))
    assert link.request(ECHO, b"on").result() == b"on"


def test_threads_get_their_own_replies(link):
    wrong = []

    def ask(thread: int) -> None:
        for number in range(200):
            said = b"%d of %d" % (number, thread)
            link.post(COUNT)
            if link.request(ECHO, said).result() != said:
                wrong.append(said)

    threads = [threading.Thread(target=ask, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_events_and_faults_reach_the_program_without_a_request():
    events, errors = Queue(), Queue()
    with spawned(
        on_event=lambda kind, body: events.put((kind, bytes(body))), on_fault=errors.put
    ) as card:
        link = card.link
        link.post(COUNT)
        link.post(FAIL, b"gone")
        link.post(NOTICE, b"look")
        assert link.request(ECHO, b"on").result() == b"on"
        assert events.get(timeout=5) == (NOTICE, b"look")
        error = errors.get(timeout=5)
        assert (error.kind, error.position, error.type_name) == ("fail", 2, "LookupError")
        assert "gone" in error.text


def test_an_error_of_a_callback_ends_the_link_and_is_named():
    def fails(kind, body):
        raise LookupError("no such listener")

    heard = []
    former, threading.excepthook = threading.excepthook, heard.append
    try:
        with spawned(on_event=fails) as card:
            card.link.post(NOTICE)
            with pytest.raises(CardError, match="LookupError: no such listener"):
                card.link.request(SLEEP, b"9").result()
            card.link._threads[1].join(10)
    finally:
        threading.excepthook = former
    assert heard


def test_the_same_over_a_unix_socket(tmp_path):
    with on_unix_socket(tmp_path) as (link, process):
        assert link.request(SUM, bytes(range(100))).result() == b"4950"
        assert link.worker.pid == process.pid
        assert (link.worker.node, link.worker.torch_version) == ("b", "2.15")
        link.close()
        assert process.wait(5) == 0
