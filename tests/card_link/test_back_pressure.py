"""What is queued for a card is bounded, and waiting for room never waits for another card."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

from tests.card_link.support.cards import spawned
from tests.card_link.support.peer import as_worker
from tests.card_link.support.worker import COUNT, ECHO, SLEEP, SUM

from penstock.card.link import CardError, LinkSettings

MB = 1 << 20
SMALL = LinkSettings(queue_bytes=MB)


def reads_when(event: threading.Event):
    def act(peer):
        while not event.wait(0.3):
            peer.pong()
        while True:
            peer.hear()

    return act


def test_posting_waits_while_too_much_is_queued_and_goes_on_when_it_is_read():
    reads = threading.Event()
    link = as_worker(reads_when(reads), SMALL)
    posted = []

    def post() -> None:
        posted.extend(link.post(COUNT, bytes(MB)) for _ in range(20))

    thread = threading.Thread(target=post)
    thread.start()
    thread.join(1)
    assert thread.is_alive()
    assert len(posted) < 4
    assert MB < link.queued_bytes < 3 * MB
    reads.set()
    thread.join(10)
    assert posted == list(range(1, 21))
    assert link.wait_sent(20, 5)
    assert link.queued_bytes == 0
    link.abort()


def test_posting_need_not_wait_and_room_can_be_waited_for():
    reads = threading.Event()
    link = as_worker(reads_when(reads), SMALL)
    for _ in range(5):
        link.post(COUNT, bytes(MB), waits=False)
    assert link.queued_bytes > 3 * MB
    assert not link.wait_for_room(0.1)
    reads.set()
    assert link.wait_for_room(5)
    link.abort()


def test_a_wait_for_room_ends_when_the_card_fails():
    with spawned("card 1", "--inbox-bytes", "1000", settings=SMALL) as card:
        card.link.post(SLEEP, b"60")
        failed = []

        def post() -> None:
            try:
                while True:
                    card.link.post(COUNT, bytes(MB))
            except CardError as error:
                failed.append(str(error))

        thread = threading.Thread(target=post)
        thread.start()
        time.sleep(0.5)
        assert thread.is_alive()
        os.kill(card.pid, signal.SIGKILL)
        thread.join(1)
        assert "killed by signal 9" in failed[0]


def test_a_buffer_may_change_after_it_was_sent():
    with spawned() as card:
        buffer = bytearray(3 * MB)
        for value in range(5):
            buffer[:] = bytes([value]) * len(buffer)
            position = card.link.post(COUNT, buffer)
            reply = card.link.request(SUM, buffer)
            assert card.link.wait_sent(position + 1, 10)
            buffer[:] = b"\xff" * len(buffer)
            assert reply.result() == b"%d" % (value * 3 * MB)


def test_a_card_that_reads_slowly_delays_no_other_card():
    reads = threading.Event()
    slow = as_worker(reads_when(reads), SMALL)
    with spawned("card 2") as other:
        for _ in range(10):
            slow.post(COUNT, bytes(MB), waits=False)
            other.link.post(COUNT, bytes(MB), waits=False)
        assert other.link.request(ECHO, b"on").result(10) == b"on"
        assert other.link.request(COUNT).result(10) == b"11"
        assert slow.queued_bytes > 5 * MB
    slow.abort()


def test_cards_that_wait_for_each_other_do_not_block_the_program():
    """Each operation needs both cards, as a collective does; a card reads on only after it."""
    rounds = 60
    meet = threading.Barrier(2)
    generator = random.Random(3)  # noqa: S311 - no secret

    def act(peer):
        for number in range(rounds):
            frame = peer.hear()
            assert frame.body[0] == number
            time.sleep(generator.choice((0, 0, 0.005)))
            meet.wait(10)
        peer.hear()

    settings = LinkSettings(queue_bytes=100_000, silent_s=20)
    links = [as_worker(act, settings) for _ in range(2)]
    for number in range(rounds):
        body = bytes([number]) * 300_000  # more than the kernel takes
        for link in links:
            link.post(COUNT, body, waits=False)
        for link in links:
            assert link.wait_for_room(10)
    for link in links:
        assert link.wait_sent(rounds, 10)
        link.abort()
